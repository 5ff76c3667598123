package kubernetes

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// restingNode is a node on which kubelet's metrics are read again only if a pod changes or a check insists.
type restingNode struct {
	t       *testing.T
	host    *host.Host
	now     finding.Timestamp
	rests   bool
	scrapes int
	last    *kubelet.Scrape
	metrics func(now time.Duration) string
}

func newRestingNode(t *testing.T) *restingNode {
	n := &restingNode{t: t, rests: true, now: finding.Timestamp{Wall: time.Unix(1_800_000_000, 0), Boot: "b",
		SinceBoot: time.Hour}}
	n.host = &host.Host{NodeName: "n", Clock: func() finding.Timestamp { return n.now }}
	n.host.Kubelet.Scrape = func(context.Context) (*kubelet.Scrape, error) {
		n.scrapes++
		metrics, err := kubelet.ParseMetrics(strings.NewReader(n.metrics(n.now.SinceBoot)), kubelet.KubeletMetrics())
		n.last = &kubelet.Scrape{At: n.now, Metrics: metrics}
		return n.last, err
	}
	n.host.Kubelet.RecentScrape = func(ctx context.Context) (*kubelet.Scrape, error) {
		if n.rests && n.last != nil {
			return n.last, nil
		}
		return n.host.Kubelet.Scrape(ctx)
	}
	n.host.Runtime.Lists = func(context.Context) error { return nil }
	return n
}

// minute runs a check and lets a minute pass. It returns the reasons found.
func (n *restingNode) minute(check detect.Check) string {
	n.t.Helper()
	found, err := check.Run(n.t.Context(), n.host)
	if err != nil {
		n.t.Fatal(err)
	}
	n.now.SinceBoot += time.Minute
	n.now.Wall = n.now.Wall.Add(time.Minute)
	var reasons []string
	for _, f := range found {
		if !f.BelowRaise {
			reasons = append(reasons, f.Reason)
		}
	}
	return strings.Join(reasons, " ")
}

// rest lets half an hour pass, in which metrics must not be read.
func (n *restingNode) rest(check detect.Check) {
	n.t.Helper()
	before := n.scrapes
	for range 30 {
		if got := n.minute(check); got != "" {
			n.t.Fatalf("at rest: %s", got)
		}
	}
	if n.scrapes != before {
		n.t.Errorf("%d scrapes at rest", n.scrapes-before)
	}
}

// A storm that ends a rest is found within two minutes. Occasional failures during the rest are none.
func TestProbeStormAfterARest(t *testing.T) {
	const pods = 8
	for name, c := range map[string]struct {
		goesOn bool
		want   string
	}{"storm": {true, "ProbeStorm"}, "single failures during the rest": {false, ""}} {
		t.Run(name, func(t *testing.T) {
			n := newRestingNode(t)
			failed := 0
			n.metrics = func(now time.Duration) string {
				text := "process_start_time_seconds 1\n"
				for i := range pods {
					for result, count := range map[string]int{"successful": int(now.Seconds()), "failed": failed} {
						text += fmt.Sprintf("prober_probe_total{pod_uid=\"uid-%d\",probe_type=\"Liveness\",result=%q} %d\n",
							i, result, count)
					}
				}
				return text
			}
			n.host.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) {
				var list []corev1.Pod
				for i := range pods {
					list = append(list, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), Namespace: "d",
						UID: types.UID(fmt.Sprint("uid-", i))}})
				}
				return list, nil
			}
			check := ProbeStorms()
			if a, b := n.minute(check), n.minute(check); a+b != "" || n.scrapes != 2 {
				t.Fatalf("at the start: %q %q, %d scrapes", a, b, n.scrapes)
			}
			n.rest(check)
			failed = 3
			n.rests = false // the watch shows a pod that has become unready, or another change
			if got := n.minute(check); got != "" {
				t.Errorf("what happened during the rest is reported as new: %s", got)
			}
			n.rests = true // however short the change was, a second minute is measured
			if c.goesOn {
				failed = 6
			}
			if got := n.minute(check); got != c.want {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}

// A runtime that lists slowly ends the rest, although no pod changes.
func TestPLEGAtRest(t *testing.T) {
	n := newRestingNode(t)
	seen := n.now.Wall
	n.metrics = func(time.Duration) string {
		return fmt.Sprintf("process_start_time_seconds 1\nkubelet_pleg_last_seen_seconds %d\n"+
			"kubelet_pleg_relist_duration_seconds_bucket{le=\"+Inf\"} 5\n", seen.Unix())
	}
	check := KubeletPLEG()
	if got := n.minute(check); got != "" {
		t.Fatal(got)
	}
	n.rest(check)
	seen = n.now.Wall.Add(-4 * time.Minute)
	n.host.Runtime.Lists = func(context.Context) error { return context.DeadlineExceeded }
	if got := n.minute(check); got != "PLEGUnhealthy" {
		t.Errorf("found %q", got)
	}
}

// A fault found is measured each minute until it has gone.
func TestNoRestWhileVolumesFail(t *testing.T) {
	n := newRestingNode(t)
	failed := 0
	n.metrics = func(time.Duration) string {
		return fmt.Sprintf("process_start_time_seconds 1\nstorage_operation_duration_seconds_count"+
			"{operation_name=\"volume_mount\",status=\"fail-unknown\",volume_plugin=\"kubernetes.io/csi:x\"} %d\n", failed)
	}
	check := VolumeMounts()
	n.minute(check)
	n.rests, failed = false, 3 // below the threshold, a minute after the pod was created
	n.minute(check)
	n.rests, failed = true, 5
	if got := n.minute(check); got != "VolumeMountsFail" {
		t.Errorf("found %q", got)
	}
	for n.minute(check) != "" {
		if n.scrapes > 20 {
			t.Fatal("not cleared")
		}
	}
	for range 10 { // until the last failure is out of the window
		n.minute(check)
	}
	n.rest(check)
}
