package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/trace/nodefault"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
	"github.com/nodeagent/nodeagent/pkg/web/command"
)

// Each verb's text has all that its answer has, on plain lines: no foreign name can add one.
func TestVerbTexts(t *testing.T) {
	at := time.Date(2026, 3, 8, 12, 0, 0, 0, time.UTC)
	half, foreign := new(0.5), "a\nb\x1b[31m"
	success := sli.Indicator{Act: record.Creation, Success: half, WithUser: half, Delivered: 50, System: 50, User: 1, Excluded: 2, Unknown: 3, Samples: 100}
	placed := report.Placed{Namespace: "greedy", Pods: 2, CPU: 8000, Bytes: 2 << 30}
	worst := report.Worst{Name: foreign, Missed: 1, Samples: 40, Share: half, OfAll: half}
	missed := report.Reason{Act: record.Creation, Reason: "NodeLost", Class: "system", N: 3, Before: 1, New: true, Example: foreign}
	for name, x := range map[string]struct {
		answer any
		want   []string
	}{
		"pod": {&api.Pod{Acts: []api.Act{{Row: store.Row{UID: "u", Act: record.Creation, Namespace: "default", Name: foreign, Outcome: verdict.Missed, Why: "late",
			Class: "system", First: "SchedulerSlow", Reason: "NodeLost", At: at, Judged: 61, User: 2}, Detail: foreign, Cost: "c04", Others: []reason.Reason{"InitSlow"},
			Advice: "Repair the node.", Bars: []api.Bar{{Name: "queue and schedule", Seconds: 30, Uncertainty: 0.5}, {Name: "pull", From: 30, Seconds: 30, Open: true}}}, {}}}, []string{
			"creation of default/a?b?[31m: missed (late), 61.0 s without 2.0 s of its user", "  uid u, node -, owner -, at 2026-03-08T12:00:00Z",
			"  reason: NodeLost (system), first SchedulerSlow, also InitSlow", "  stage:  queue and schedule, of scheduler", "  text:   a?b?[31m",
			"  to do:  Repair the node.", "  queue and schedule  |###############               |   30.0 s ±0.5",
			"  pull                |               ###############|   30.0 s, open",
			" of /: open, 0.0 s", "  uid , node -, owner -, at 0001-01-01T00:00:00Z"}},
		"slis": {&api.SLIs{Window: "5m", AsOf: at, Lag: 1, SLIs: []sli.Indicator{success, {Act: record.Deletion}}}, []string{
			"5m until 2026-03-08T12:00:00Z, the watch is 1 s behind", "ACT       SUCCESS        WITH USER      DELIVERED  SYSTEM  USER  EXCLUDED  UNKNOWN",
			"creation  50.00 %        50.00 %        50         50      1     2         3", "deletion  fewer than 20  fewer than 20  0          0       0     0         0"}},
		"failures": {&api.Failures{Groups: []api.Group{{Act: record.Creation, Reason: "NodeLost", Class: "system", N: 3,
			Newest: store.Row{Namespace: "default", Name: foreign}, Nodes: []sli.Top{{Name: "n1", N: 2}, {Name: "n2", N: 1}}}, {N: 1}}}, []string{
			"    3  creation  NodeLost                 system  newest default/a?b?[31m, nodes n1 (2) n2 (1)",
			"    1                                             newest /"}},
		"terminating": {&[]follow.Terminating{{Namespace: "default", Name: foreign, For: 90*time.Second + 1, Reason: "FinalizerHeld", Detail: "x/y"}}, []string{
			"default/a?b?[31m  1m30s  node -  FinalizerHeld  x/y"}},
		"health": {&health.State{Level: health.Fatal, Since: at, Counts: health.Counts{Nodes: 5, FaultyNodes: 2, Leftovers: 1}, Causes: []health.Cause{{Level: health.Fatal, Text: foreign}}}, []string{
			"Fatal since 2026-03-08T12:00:00Z; 5 nodes, 2 faulty; 1 pods stay in Terminating", "  Fatal: a?b?[31m"}},
		"components": {&api.Components{Components: []api.Component{{State: probe.State{Component: "etcd", Instance: "by the apiservers", State: "offline", Why: foreign}, Rate: half}}}, []string{
			"  etcd               by the apiservers            offline  online in a day: 50.00 %  a?b?[31m"}},
		"nodes": {&api.Nodes{Mass: []string{foreign}, Faults: []nodefault.Fault{{Node: foreign, Kind: "SandboxFailsOnNode", Misses: 3, Acts: 4, Others: 0.01, Since: at}},
			Scores: []nodefault.Score{{Node: foreign, Score: 30, Why: []string{"20 points: a", "50 points: b"}}, {Node: "best", Score: 100}}}, []string{
			`So many nodes of pool "a?b?[31m" fail their pods that the fault is the cluster's.`,
			"a?b?[31m  SandboxFailsOnNode  3 of 4 pods, 1.00 % on the other nodes, since 2026-03-08T12:00:00Z",
			"a?b?[31m  score 30 of 100; 20 points: a; 50 points: b"}},
		"tenants": {&api.Tenants{Window: "1d", AsOf: at, Requests: []api.Requests{{FlowSchema: foreign, Served: 1, Throttled: 1, Share: half}}, Exhausted: 7,
			Took: []report.Placed{placed}}, []string{"1d until 2026-03-08T12:00:00Z", "", "FLOWSCHEMA  SERVED  THROTTLED  SHARE", "a?b?[31m    1       1          50.00 %", "",
			"7 creations were missed because no node had room", "Pods placed in those hours, and in the hour before:", "NAMESPACE  PODS  CPU  MEMORY GIB", "greedy     2     8.0  2.0"}},
		"weekly": {&report.Report{Week: "2026-W10", From: at, To: at, Missing: []string{foreign}, Acts: []report.Success{{Indicator: success, Before: success}},
			Reasons: append(make([]report.Reason, few), missed, report.Reason{Reason: "not printed"}), Owners: []report.Worst{worst}, Nodes: []report.Worst{worst},
			Leftovers: []report.Reason{missed}, Stages: []report.Stage{{Act: record.Creation, Name: "pull", Samples: 20, P50: half, P90: half, Share: half}},
			Slower: []report.Slower{{Group: report.Group{Component: "kubelet", Name: "pull"}, Version: "v2", Than: "v1", P90: 2, ThanP90: 1}},
			Online: []report.Online{{Component: "etcd", Instance: foreign, Rate: half, Samples: 20}}, Requests: []report.Online{{Instance: foreign, Rate: half, Samples: 20}},
			Exhausted: 4, Took: []report.Placed{placed}, Budget: report.Budget{Objective: 0.99, Success: half, Samples: 100, Left: half, Days: 7},
			Center: &report.NodesOnline{Week: "2026-W10", Nodes: 5, Available: 0.9, Unknown: 0.1, Found: 2, Repaired: 1}}, []string{
			"Week 2026-W10: 2026-03-08 12:00 UTC to 2026-03-08 12:00 UTC", "NOT IN IT: a?b?[31m",
			"budget: 50.00 % left of 7 of 28 days; 50.00 % of 100 creations in time, the objective is 99.00 %", "",
			"ACT       IN TIME  WEEK BEFORE     DELIVERED  SYSTEM  USER  EXCLUDED  UNKNOWN", "creation  50.00 %  50.00 % of 100  50         50      1     2         3", "",
			"REASON    ACT       WHOSE   MISSES  WEEK BEFORE       NEWEST", "                            0       0                 ", "NodeLost  creation  system  3       1            new  a?b?[31m", "",
			"WORST OWNER  MISSED BY THE SYSTEM  OF ITS ACTS  SHARE    OF ALL SUCH MISSES", "a?b?[31m     1                     40           50.00 %  50.00 %", "",
			"WORST NODE  MISSED BY THE SYSTEM  OF ITS ACTS  SHARE    OF ALL SUCH MISSES", "a?b?[31m    1                     40           50.00 %  50.00 %", "",
			"NEW LEFTOVER  WHOSE   PODS  NEWEST", "NodeLost      system  3     a?b?[31m", "",
			"STAGE  ACT       SAMPLES  MEDIAN  P90     SHARE OF THE TIME", "pull   creation  20       0.50 s  0.50 s  50.00 %", "",
			"SLOWER: kubelet v2 than v1: pull, p90 2.00 s instead of 1.00 s", "",
			"COMPONENT  INSTANCE  ONLINE   PROBES", "etcd       a?b?[31m  50.00 %  20", "",
			"FLOWSCHEMA  NOT THROTTLED  REQUESTS", "a?b?[31m    50.00 %        20", "",
			"4 creations found no room", "TOOK THE LAST CAPACITY  PODS  CPU  MEMORY GIB", "greedy                  2     8.0  2.0", "",
			"nodes in 2026-W10: 5, 90.00 % available, 10.00 % unknown; 2 faults found, 1 repaired"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			o, cmd := &command.Asker{Templates: verbTexts, Functions: functions()}, &cobra.Command{}
			cmd.SetOut(&out)
			if err := o.Print(cmd, name, x.answer, nil); err != nil {
				t.Fatal(err)
			}
			var got []string
			for line := range strings.Lines(out.String()) {
				if line = strings.TrimSuffix(line, "\n"); len(got) == 0 || line != got[len(got)-1] {
					got = append(got, line)
				}
			}
			if diff := cmp.Diff(x.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
