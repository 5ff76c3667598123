package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/need"
)

// A replica is away while more is written than the others' logs hold, and returns under load. Until it has everything
// that was acknowledged before its return, it answers no reads and gives the reason; every acknowledged event is there
// exactly once on each; and a subscriber that moves between all replicas sees each offset once.
func TestReplicasAway(t *testing.T) {
	need.Flag(t, *long, "-long")
	r := startReplicas(t)
	l := newLoad(8)
	sub := &follower{t: t, last: "0"}
	ctx, cancel := context.WithCancel(t.Context())
	var running, following sync.WaitGroup
	defer func() { l.over.Store(true); cancel(); running.Wait(); following.Wait() }()
	running.Go(func() { l.send(r.all[0]) })
	address := r.all[2].url
	urls := []string{r.all[0].url, r.all[1].url, address}
	following.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			one, end := context.WithTimeout(ctx, 2*time.Second)
			sub.follow(one, &process{t: t, dir: r.dirs[i%3], url: urls[i%3]}, 0)
			end()
			time.Sleep(50 * time.Millisecond)
		}
	})
	l.wait(t, 100)
	r.all[2].stop(syscall.SIGTERM)
	for batch := range 8 {
		var err error
		if !eventually(patience, func() bool { err = r.all[1].postLarge(batch); return err == nil }) { // during an election
			t.Fatal(err)
		}
	}
	l.wait(t, 100)
	then := r.newest(0)
	r.all[2] = startAt(t, strings.TrimPrefix(address, "http://"), r.dirs[2], "--replicas", r.files[2])
	refused := 0
	if !eventually(patience, func() bool {
		status, body, err := r.all[2].do(http.MethodGet, "/v1/events?limit=1", "", nil)
		var answer struct{ Newest, Reason string }
		switch {
		case err != nil:
		case json.Unmarshal(body, &answer) != nil:
			t.Errorf("%d %.300s", status, body)
		case status == http.StatusServiceUnavailable && answer.Reason != "":
			refused++
		case status == http.StatusOK:
			if newest, err := strconv.Atoi(answer.Newest); err != nil || newest < then {
				t.Errorf("it answers with %s of %d: %v", answer.Newest, then, err)
			}
			return true
		default:
			t.Errorf("%d %.300s", status, body)
		}
		return false
	}) {
		t.Fatalf("it does not come back: %s", r.all[2].log)
	}
	r.all[2].await(http.StatusOK)
	t.Logf("%d requests were refused before it had all", refused)
	if refused == 0 {
		t.Error("nothing was seen of it before it had all")
	}
	l.wait(t, 100)
	l.over.Store(true)
	running.Wait()
	r.once(l)
	cancel()
	following.Wait()
	sub.once(t, r.all[2], len(readAll(t, r.all[2])))
}

// postLarge sends a batch of 5 MB, always the same.
func (p *process) postLarge(batch int) error {
	var events []string
	data, random := make([]byte, 20_000), rand.NewChaCha8([32]byte{byte(batch)})
	for i := range 120 {
		_, _ = random.Read(data) // never fails; the servers compress their logs
		events = append(events, fmt.Sprintf(`{"specversion":"1.0","id":"%d-%d","source":"urn:large","type":"com.example.large",`+
			`"data":"%x"}`, batch, i, data))
	}
	status, answer, err := p.do(http.MethodPost, "/v1/events", "application/cloudevents-batch+json",
		[]byte("["+strings.Join(events, ",")+"]"))
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%d: %.300s", status, answer)
	}
	return err
}

// newest returns the newest offset of a replica.
func (r *threeReplicas) newest(i int) int {
	r.t.Helper()
	status, body, err := r.all[i].do(http.MethodGet, "/v1/events?limit=1", "", nil)
	var answer struct {
		Newest int `json:",string"`
	}
	if err != nil || status != http.StatusOK || json.Unmarshal(body, &answer) != nil {
		r.t.Fatalf("%d %v %.300s", status, err, body)
	}
	return answer.Newest
}
