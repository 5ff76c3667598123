package daemonset

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// threeOnOne are the settings of three replicas on one machine.
var threeOnOne = []string{"replicated=true", "replicas.sameNode=true"}

// testReplicas follows "From one to three": the history is on each replica, at the same offsets, and the agent
// continues. Then, while events arrive, an upgrade replaces one pod after another, and one pod is deleted: every
// acknowledged event is on each replica once.
func testReplicas(t *testing.T, c *center) {
	c.nameServer(t)
	c.kubectl(t, "delete", "statefulset", "-n", namespace, "eventcenter", "--timeout=10m")
	for i := 1; i < 3; i++ {
		c.createVolume(t, fmt.Sprint("eventcenter-", i))
	}
	var first struct {
		Events []struct{ Event struct{ ID string } }
	}
	c.installCenter(t, append(slices.Clone(threeOnOne), "migrate=true")...)
	if _, err := c.get(t.Context(), c.reader, "/v1/events?limit=1", &first); err != nil || len(first.Events) != 1 {
		t.Fatalf("the first event: %v, %+v", err, first)
	}
	s := c.newSender(t)
	var sending sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer func() { stop(); sending.Wait() }()
	sending.Go(func() { s.run(ctx) })
	s.await(t, 50)
	replaced := c.observeRoll(t)
	c.installCenter(t, threeOnOne...) // without the migration
	if diff := cmp.Diff([]string{"eventcenter-0", "eventcenter-1", "eventcenter-2"}, replaced()); diff != "" {
		t.Errorf("pods replaced by the upgrade (-want +got):\n%s", diff)
	}
	s.await(t, 50)
	c.kubectl(t, "delete", "pod", "-n", namespace, "eventcenter-1", "--timeout=10m")
	s.await(t, 50)
	c.kubectl(t, "rollout", "status", "-n", namespace, "statefulset/eventcenter", "--timeout=10m")
	disk := failedDisk(t, c.Dir)
	for i := range 3 {
		c.on(t, i).awaitFault(t, disk.Mount, true) // of the real agent
	}
	stop()
	sending.Wait()
	t.Logf("%d events acknowledged, %d requests refused, none taken for at most %s", s.acknowledged, s.refused, s.pause)
	c.onceOnEach(t, s, first.Events[0].Event.ID)
	if err := disk.Unmount(); err != nil {
		t.Error(err)
	}
}

// testNothingButVolumes removes the release: only the objects named in the documentation stay.
func testNothingButVolumes(t *testing.T, c *center) {
	c.uninstallCenter(t)
	const kinds = "statefulsets,controllerrevisions,pods,services,endpointslices,configmaps,secrets,serviceaccounts," +
		"persistentvolumeclaims,poddisruptionbudgets,roles,rolebindings,clusterroles,clusterrolebindings,leases"
	var left []string
	await(t, "what is derived to be gone", func() error {
		left = nil
		for _, line := range strings.Split(c.kubectl(t, "get", kinds, "--all-namespaces", "--output",
			`jsonpath={range .items[*]}{.kind}/{.metadata.name}{"\n"}{end}`), "\n") {
			if strings.Contains(line, "/eventcenter") || strings.Contains(line, "data-eventcenter") {
				left = append(left, line)
			}
		}
		slices.Sort(left)
		if len(left) > 5 {
			return fmt.Errorf("there is %v", left)
		}
		return nil
	})
	if diff := cmp.Diff([]string{"PersistentVolumeClaim/data-eventcenter-0", "PersistentVolumeClaim/data-eventcenter-1",
		"PersistentVolumeClaim/data-eventcenter-2", "Secret/eventcenter-replicas", "Secret/eventcenter-tls"}, left); diff != "" {
		t.Errorf("what stays (-want +got):\n%s", diff)
	}
}

// testThreeAtOnce installs three replicas without an earlier release. A first attempt with an image that does not exist
// is repaired as documented: the upgrade replaces one pod, which does not become ready without the others, so they are
// deleted by hand.
func testThreeAtOnce(t *testing.T, c *center) {
	c.removeVolumes(t)
	for i := range 3 {
		c.createVolume(t, fmt.Sprint("eventcenter-", i))
	}
	c.nameServer(t)
	c.applyCenter(t, append(slices.Clone(threeOnOne), "image.tag=none")...)
	state := func(want string) {
		t.Helper()
		await(t, "pods to be "+want, func() error {
			if got := c.kubectl(t, "get", "pods", "-n", namespace, "-l", "app.kubernetes.io/name=eventcenter", "-o",
				`jsonpath={range .items[*].status.containerStatuses[*]}{.state.waiting.reason}{.started} {end}`); got != want {
				return fmt.Errorf("they are %s", got)
			}
			return nil
		})
	}
	state("ErrImageNeverPullfalse ErrImageNeverPullfalse ErrImageNeverPullfalse ")
	c.applyCenter(t, threeOnOne...)
	state("ErrImageNeverPullfalse ErrImageNeverPullfalse true ")
	c.kubectl(t, "delete", "pod", "-n", namespace, "eventcenter-0", "eventcenter-1", "--timeout=10m")
	c.installCenter(t, threeOnOne...)
	disk := failedDisk(t, c.Dir)
	for i := range 3 {
		c.on(t, i).awaitFault(t, disk.Mount, true)
	}
	if err := disk.Unmount(); err != nil {
		t.Error(err)
	}
}

// sender is an agent of another Node, which sends each batch until it is acknowledged, and then the next one.
type sender struct {
	c     *center
	token string

	mu                    sync.Mutex // guards what follows
	acknowledged, refused int
	last                  string        // the reason
	pause                 time.Duration // the longest time between two acknowledgements
}

const senderNode, senderStream, perBatch = "replicas-node", "01J9ZZZZZZZZZZZZZZZZZZZZZZ", 5

func (c *center) newSender(t *testing.T) *sender {
	t.Helper()
	if err := c.KubectlApply(t.Context(), "apiVersion: v1\nkind: Node\nmetadata: {name: "+senderNode+"}\n"); err != nil {
		t.Fatal(err)
	}
	return &sender{c: c, token: strings.TrimSpace(c.kubectl(t, "create", "token", "-n", namespace, "nodeagent",
		"--audience=eventcenter", "--bound-object-kind=Node", "--bound-object-name="+senderNode))}
}

func (s *sender) run(ctx context.Context) {
	for taken := time.Now(); ctx.Err() == nil; {
		err := s.send(ctx, uint64(s.acknowledged))
		s.mu.Lock()
		if err == nil {
			s.acknowledged += perBatch
			s.pause = max(s.pause, time.Since(taken))
			taken = time.Now()
		} else {
			s.refused, s.last = s.refused+1, err.Error()
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond): // the rate limit of a node
		}
	}
}

// send sends the batch after a sequence.
func (s *sender) send(ctx context.Context, after uint64) error {
	var texts []json.RawMessage
	for sequence := after + 1; sequence <= after+perBatch; sequence++ {
		subject := finding.Subject{Kind: "server", Name: fmt.Sprint(sequence)}
		e := event.Event{Type: event.FaultRaised, Cluster: "lab", Node: senderNode, Time: time.Now().UTC(),
			Severity: finding.Info, Stream: senderStream, Sequence: sequence,
			Subject: event.Subject{Check: "dns", Reason: "Slow", Kind: subject.Kind, Name: subject.Name},
			Data:    event.Fault{ID: "x", Check: "dns", Subject: subject, Severity: finding.Info, Reason: "Slow", Message: "slow"}}
		text, err := e.Encode()
		if err != nil {
			return err
		}
		texts = append(texts, text)
	}
	body, err := json.Marshal(texts)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+centerName+"/v1/events", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+s.token)
	request.Header.Set("Content-Type", event.BatchMediaType)
	response, err := s.c.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("%d %w %.300s", response.StatusCode, err, text)
	}
	return nil
}

// await returns when this many more events are acknowledged.
func (s *sender) await(t *testing.T, more int) {
	t.Helper()
	s.mu.Lock()
	begun := s.acknowledged
	s.mu.Unlock()
	await(t, "events to be acknowledged", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.acknowledged < begun+more {
			return fmt.Errorf("%d of %d; %s", s.acknowledged-begun, more, s.last)
		}
		return nil
	})
}

// onceOnEach compares the replicas with each other, and with the acknowledged events. The first event must be
// unchanged.
func (c *center) onceOnEach(t *testing.T, s *sender, firstID string) {
	t.Helper()
	var before []string
	for i := range 3 {
		var ids []string
		await(t, "all events on each replica", func() (err error) {
			if ids, err = c.on(t, i).ids(t.Context()); err == nil && len(ids) < len(before) {
				err = fmt.Errorf("%d of %d", len(ids), len(before))
			}
			return err
		})
		if len(ids) == 0 || ids[0] != firstID {
			t.Fatalf("replica %d begins with %.1q, before it was %s", i, ids, firstID)
		}
		if i > 0 && !slices.Equal(before, ids[:len(before)]) {
			t.Errorf("replica %d differs", i)
		}
		before = ids
		times := map[string]int{}
		for _, id := range ids {
			times[id]++
		}
		for sequence := 1; sequence <= s.acknowledged; sequence++ {
			if id := fmt.Sprintf("%s-%020d", senderStream, sequence); times[id] != 1 {
				t.Errorf("replica %d: %s was acknowledged, and is there %d times", i, id, times[id])
			}
		}
	}
}

// ids returns the IDs of all events, in the order of their offsets, which must have no gap.
func (c *center) ids(ctx context.Context) (ids []string, err error) {
	for {
		var page struct {
			Events []struct {
				Offset int `json:",string"`
				Event  struct{ ID string }
			}
			Next, Newest string
		}
		code, err := c.get(ctx, c.reader, "/v1/events?limit=1000&after="+strconv.Itoa(len(ids)), &page)
		if err != nil || code != http.StatusOK {
			return nil, fmt.Errorf("%d %w", code, err)
		}
		for _, e := range page.Events {
			if e.Offset != len(ids)+1 {
				return nil, fmt.Errorf("offset %d after %d", e.Offset, len(ids))
			}
			ids = append(ids, e.Event.ID)
		}
		if page.Next == page.Newest {
			return ids, nil
		}
	}
}
