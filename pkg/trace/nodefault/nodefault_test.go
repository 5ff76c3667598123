package nodefault

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// acts returns n creations of an owner on a node; with a reason, they were missed.
func acts(node, owner string, n int, why reason.Reason) (all []sli.Act) {
	namespace, owner, _ := strings.Cut(owner, "/")
	for range n {
		a := sli.Act{Act: record.Creation, Node: node, Namespace: namespace, Owner: owner, Outcome: verdict.Delivered, At: now.Add(-10 * time.Minute)}
		if why != "" {
			a.Outcome, a.Class, a.Reason = verdict.Missed, reason.System, why
		}
		all = append(all, a)
	}
	return all
}

func deletions(all []sli.Act) []sli.Act {
	for i := range all {
		all[i].Act = record.Deletion
	}
	return all
}

func join(parts ...[]sli.Act) (all []sli.Act) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// fleet are nodes that deliver pods of the owner a/web.
func fleet(nodes, pods int) (all []sli.Act) {
	for i := range nodes {
		all = append(all, acts(fmt.Sprint("n", i), "a/web", pods, "")...)
	}
	return all
}

func TestFind(t *testing.T) {
	byUser := acts("n0", "a/web", 5, "ImagePullFailed")
	for i := range byUser {
		byUser[i].Class = reason.User
	}
	for name, c := range map[string]struct {
		acts []sli.Act
		want string
	}{
		"nothing":                       {nil, ""},
		"all well":                      {fleet(20, 10), ""},
		"two misses are no proof":       {join(fleet(20, 10), acts("n0", "a/web", 2, "SandboxFailed")), ""},
		"three are":                     {join(fleet(20, 10), acts("n0", "a/web", 3, "SandboxFailed")), "n0 SandboxFailsOnNode 3/13"},
		"of one kind together":          {join(fleet(20, 10), acts("n0", "a/web", 2, "MountFailed"), acts("n0", "a/web", 1, "CSIDriverMissing")), "n0 MountFailsOnNode 3/13"},
		"not of two kinds together":     {join(fleet(20, 10), acts("n0", "a/web", 2, "MountFailed"), acts("n0", "a/web", 2, "SandboxFailed")), ""},
		"the user's are none":           {join(fleet(20, 10), byUser), ""},
		"not the node's":                {join(fleet(20, 10), acts("n0", "a/web", 9, "CapacityExhausted")), ""},
		"one owner, only here":          {join(fleet(20, 10), acts("n0", "b/heavy", 9, "ImagePullFailed")), ""},
		"two owners of one tenant":      {join(fleet(20, 10), acts("n0", "b/heavy", 9, "ImagePullFailed"), acts("n0", "b/bad", 9, "ImagePullFailed")), ""},
		"two tenants":                   {join(fleet(20, 10), acts("n0", "b/heavy", 2, "ImagePullFailed"), acts("n0", "c/other", 1, "ImagePullFailed")), "n0 ImagePullFailsOnNode 3/13"},
		"one owner, fine elsewhere":     {join(fleet(20, 10), acts("n0", "b/x", 3, "ImagePullFailed"), acts("n1", "b/x", 1, "")), "n0 ImagePullFailsOnNode 3/13"},
		"no worse than the others":      {join(fleet(20, 10), acts("n0", "a/web", 3, "KubeletSlow"), acts("n1", "a/web", 30, "KubeletSlow"), acts("n2", "a/web", 30, "KubeletSlow")), "n1 DeliverySlowOnNode 30/40, n2 DeliverySlowOnNode 30/40"},
		"the only node":                 {acts("n0", "a/web", 9, "SandboxFailed"), ""},
		"few of many on a busy node":    {join(fleet(20, 10), acts("n0", "a/web", 1000, ""), acts("n0", "a/web", 3, "MountSlow")), ""},
		"many of many":                  {join(fleet(20, 100), acts("n0", "a/web", 20, "MountSlow")), "n0 MountFailsOnNode 20/120"},
		"two of six nodes":              {join(fleet(6, 10), acts("n0", "a/web", 9, "NetworkFailed"), acts("n1", "a/web", 9, "MountFailed")), "mass"},
		"five of twenty are no better":  {join(fleet(20, 10), acts("n0", "a/web", 9, "NetworkFailed"), acts("n1", "a/web", 9, "NetworkFailed"), acts("n2", "a/web", 9, "NetworkFailed"), acts("n3", "a/web", 9, "NetworkFailed"), acts("n4", "a/web", 9, "NetworkFailed")), ""},
		"deletions":                     {join(deletions(fleet(20, 10)), deletions(acts("n7", "a/web", 4, "ContainerUnkillable"))), "n7 PodsStuckTerminating 4/14"},
		"deletions beside creations":    {join(fleet(20, 10), deletions(fleet(20, 3)), acts("n7", "a/web", 2, "SandboxFailed"), deletions(acts("n7", "a/web", 2, "ContainerUnkillable"))), ""},
		"an unknown outcome is neither": {join(fleet(20, 10), []sli.Act{{Act: record.Creation, Node: "n0", Outcome: verdict.Unknown}}), ""},
	} {
		faults, mass := Find(c.acts)
		var got []string
		for _, f := range faults {
			got = append(got, fmt.Sprintf("%s %s %d/%d", f.Node, f.Kind, f.Misses, f.Acts))
		}
		if len(mass) > 0 {
			got = append(got, "mass")
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %v, want %q", name, got, c.want)
		}
	}
}

func TestTail(t *testing.T) {
	for _, c := range []struct {
		n, k    int
		p, want float64
	}{{10, 0, 0.3, 1}, {1, 1, 0.25, 0.25}, {2, 1, 0.5, 0.75}, {10, 10, 0.5, 1.0 / 1024}, {100, 3, 0.001, 0.000150}, {5, 5, 1, 1}} {
		if got := tail(c.n, c.k, c.p); math.Abs(got-c.want) > 1e-5 {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// Equal nodes give no fault: in a simulated year of windows with two misses of a hundred pods.
func TestNoFalseFault(t *testing.T) {
	random, false_ := rand.New(rand.NewPCG(1, 2)), 0
	const windows = 1000
	for range windows {
		var all []sli.Act
		for node := range 50 {
			for range 20 {
				why := reason.Reason("")
				if random.Float64() < 0.02 {
					why = "ImagePullCostTime"
				}
				all = append(all, acts(fmt.Sprint("n", node), "a/web", 1, why)...)
			}
		}
		faults, _ := Find(all)
		false_ += len(faults)
	}
	if false_ > windows*50/1000 { // the level of significance
		t.Errorf("%d false faults in %d windows of 50 nodes", false_, windows)
	}
}

// Each pool is compared by itself: one in which too many nodes fail ends the faults of its nodes, and raises none until ten
// minutes after the last time.
func TestMassOfAPool(t *testing.T) {
	in := func(pool string, all []sli.Act) []sli.Act {
		for i := range all {
			all[i].Pool, all[i].Node = pool, pool+all[i].Node
		}
		return all
	}
	one := in("gpu-", join(fleet(6, 10), acts("n0", "a/web", 9, "NetworkFailed")))
	two := join(one, in("gpu-", acts("n1", "a/web", 9, "MountFailed")))
	other := in("cpu-", join(fleet(20, 10), acts("n7", "a/web", 5, "SandboxFailed")))
	var tracker Tracker
	var got []string
	for _, step := range []struct {
		after time.Duration
		acts  []sli.Act
	}{{0, one}, {time.Minute, two}, {2 * time.Minute, one}, {12 * time.Minute, one}} {
		active, ended, mass := tracker.Take(join(step.acts, other), now.Add(step.after))
		line := fmt.Sprint(step.after, " mass ", mass)
		for _, f := range active {
			line += " " + f.Node
		}
		for _, f := range ended {
			line += " ended " + f.Node
		}
		got = append(got, line)
	}
	want := "0s mass [] cpu-n7 gpu-n0, 1m0s mass [gpu-] cpu-n7 ended gpu-n0, 2m0s mass [gpu-] cpu-n7, 12m0s mass [] cpu-n7 gpu-n0"
	if strings.Join(got, ", ") != want {
		t.Errorf("%s, want %s", strings.Join(got, ", "), want)
	}
}

func TestTracker(t *testing.T) {
	var tracker Tracker
	bad := join(fleet(20, 10), acts("n0", "a/web", 5, "SandboxFailed"))
	active, ended, _ := tracker.Take(bad, now)
	if len(active) != 1 || len(ended) != 0 || !active[0].Since.Equal(now) {
		t.Fatalf("%v %v", active, ended)
	}
	later := func(n int) []sli.Act { // deliveries after the misses
		more := acts("n0", "a/web", n, "")
		for i := range more {
			more[i].At = now
		}
		return more
	}
	if active, ended, _ = tracker.Take(join(fleet(20, 10), later(19)), now.Add(40*time.Minute)); len(active) != 1 || len(ended) != 0 {
		t.Errorf("19 good deliveries: %v %v", active, ended)
	}
	if active, ended, _ = tracker.Take(join(fleet(20, 10), later(20)), now.Add(41*time.Minute)); len(active) != 0 || len(ended) != 1 || ended[0].Node != "n0" {
		t.Errorf("20 good deliveries: %v %v", active, ended)
	}
	tracker.Take(bad, now)
	if active, ended, _ = tracker.Take(nil, now.Add(2*time.Hour)); len(active) != 0 || len(ended) != 1 {
		t.Errorf("after two hours: %v %v", active, ended)
	}
}
