package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
	"github.com/nodeagent/nodeagent/pkg/report/taint"
)

var taintTrials = flag.Int("taints", 10, "how many nodes TestRealAPIServerTaintLatency lets fail")

// TestRealAPIServerTaintLatency measures the time from a believed fatal finding until others see the taint in a watch:
// with the rights, policies and budget of the chart, real tokens, and the limits of the agent's own requests. It uses
// one node after another, and removes each taint again. The bench prints the figures.
func TestRealAPIServerTaintLatency(t *testing.T) {
	r := newRealAPIServer(t)
	admin := r.client("admin")
	for _, file := range []string{"rbac.yaml", "rights.yaml", "claims.yaml"} {
		r.apply(admin, file)
	}
	first := r.fleet(r.bound(admin, "first", nil), budget(1, 1), nil)
	until(t, "claims are confined", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		slot, err := first.Acquire(ctx, "first", time.Second)
		if err == nil {
			slot.Release(t.Context())
		}
		return err
	}, func(err error) bool { return err == nil })
	seen := r.watchTaints(t, admin)
	nodes := make([]*taint.Reporter, 0, *taintTrials)
	worlds := make([]*reporttest.World, 0, *taintTrials)
	for i := range *taintTrials {
		c := r.bound(admin, fmt.Sprint("fails-", i), nil)
		c.limit()
		settings := fleet.Defaults()
		settings.Namespace = claimsNamespace
		reporter := taint.New(taint.Config{Node: c, Mode: taint.On, Hold: time.Millisecond, Budget: r.fleet(c, settings, nil)})
		reporttest.Start(t, reporter)
		world := reporttest.NewWorld()
		reporter.Update(world.Run("disk", nil))
		nodes, worlds = append(nodes, reporter), append(worlds, world)
	}
	var times []time.Duration
	for i, reporter := range nodes {
		name := fmt.Sprint("fails-", i)
		state, updates := worlds[i].Run("disk", nil, "DiskReadonly")
		times = append(times, timeUntil(t, seen, name, "DiskReadonly:NoSchedule", reporter, state, updates))
		state, updates = worlds[i].Run("disk", nil)
		timeUntil(t, seen, name, "", reporter, state, updates)
		until(t, "the isolation is given back", func() error { return nil },
			func(error) bool { return len(r.claims(admin)) == 0 })
	}
	slices.Sort(times)
	at := func(share float64) time.Duration {
		return times[min(len(times)-1, int(share*float64(len(times))))].Round(time.Millisecond)
	}
	t.Logf("fatal finding to taint: median %s, p99 %s, worst %s of %d", at(0.5), at(0.99), at(1), len(times))
}

// shown is our taint as shown by a watch.
type shown struct {
	node, taint string
	at          time.Time
}

// timeUntil returns the time from a state until the watch shows a taint of a node; an empty want means no taint.
func timeUntil(t *testing.T, seen <-chan shown, node, want string, reporter *taint.Reporter, state finding.State,
	updates []finding.Update) time.Duration {
	t.Helper()
	begin := time.Now()
	reporter.Update(state, updates)
	limit := time.After(2 * time.Minute)
	for {
		select {
		case s, ok := <-seen:
			if !ok {
				t.Fatal("the watch has ended")
			}
			if s.node == node && s.taint == want && s.at.After(begin) {
				return s.at.Sub(begin)
			}
		case <-limit:
			t.Fatalf("%s: never %q", node, want)
		}
	}
}

// watchTaints watches all Nodes as the administrator, from now on.
func (r *realAPIServer) watchTaints(t *testing.T, admin *Client) <-chan shown {
	t.Helper()
	answer, err := r.send(admin, http.MethodGet, "/api/v1/nodes", "")
	var list corev1.NodeList
	if err := errors.Join(err, json.Unmarshal(answer, &list)); err != nil {
		t.Fatal(err)
	}
	authorities, err := os.ReadFile(r.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authorities)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		r.URL+"/api/v1/nodes?watch=true&resourceVersion="+list.ResourceVersion, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer admin")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool,
		MinVersion: tls.VersionTLS12}}}
	response, err := client.Do(request)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatal(response, err)
	}
	t.Cleanup(func() { response.Body.Close() })
	seen := make(chan shown, 10_000)
	go func() {
		defer close(seen)
		for decoder := json.NewDecoder(response.Body); ; {
			var event struct {
				Type   string
				Object json.RawMessage
			}
			var node corev1.Node
			if err := decoder.Decode(&event); err != nil {
				return
			}
			s := shown{at: time.Now()}
			if err := json.Unmarshal(event.Object, &node); err != nil {
				t.Logf("%s %s: %v", event.Type, event.Object, err)
				return
			}
			s.node = node.Name
			for _, taint := range node.Spec.Taints {
				if taint.Key == "nodeagent.github.io/unhealthy" {
					s.taint = taint.Value + ":" + string(taint.Effect)
				}
			}
			seen <- s
		}
	}()
	return seen
}
