package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes/criticaldaemonsets"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
)

const daemonSetManifest = `{"apiVersion":"apps/v1","kind":"DaemonSet",
"metadata":{"name":"critical","namespace":"default","labels":{"nodeagent.io/critical":"true"}},
"spec":{"selector":{"matchLabels":{"app":"critical"}},"template":{"metadata":{"labels":{"app":"critical"}},
"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"main","image":%q,"imagePullPolicy":"Never",
"command":["sh","-c",%q],"resources":{"requests":{"cpu":%q}}}]}}}}`

// The real controller creates the pods and the real kubelet runs them; the check reports each way in which that fails.
func TestCriticalDaemonSets(t *testing.T) {
	t.Parallel()
	c := openCSILab(t) // only for its host; no driver is started
	apply := func(image, command, cpu string) {
		t.Helper()
		if err := c.lab.KubectlApply(t.Context(), fmt.Sprintf(daemonSetManifest, image, command, cpu)); err != nil {
			t.Fatal(err)
		}
	}
	get := func(ctx context.Context, into any, args ...string) error {
		out, err := c.lab.Kubectl(ctx, append([]string{"get", "-o", "json"}, args...)...)
		if err != nil {
			return err
		}
		return json.Unmarshal(out, into)
	}
	// Read from the apiserver in each run: the test must not wait for the client's cache.
	c.host.Cluster.DaemonSets = func(ctx context.Context) ([]appsv1.DaemonSet, error) {
		var list appsv1.DaemonSetList
		err := get(ctx, &list, "daemonsets", "-A")
		return list.Items, err
	}
	lookups := criticaldaemonsets.DaemonSetLookups{
		DaemonSet: func(ctx context.Context, namespace, name string) (*appsv1.DaemonSet, error) {
			var set appsv1.DaemonSet
			err := get(ctx, &set, "daemonset", "-n", namespace, name)
			return &set, err
		},
		Unscheduled: func(ctx context.Context, namespace, selector string) ([]corev1.Pod, error) {
			var list corev1.PodList
			err := get(ctx, &list, "pods", "-n", namespace, "-l", selector, "--field-selector", "spec.nodeName=")
			return list.Items, err
		},
	}
	settings := criticaldaemonsets.DefaultSettings()
	settings.PriorityClasses = nil // the lab's own are not evaluated
	settings.BootGrace, settings.ReadyGrace = 0, time.Second
	await := func(reason string) {
		t.Helper()
		// A new check each time: an existing one would ask at growing intervals.
		ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
		defer cancel()
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			found, err := criticaldaemonsets.New(settings, lookups).Run(ctx, c.host)
			var mine finding.Finding
			for _, f := range found {
				if f.Subject.Name == "default/critical" {
					mine = f
				}
			}
			if err == nil && mine.Reason == reason {
				t.Logf("%q: %s", reason, mine.Message)
				return
			}
			select {
			case <-ctx.Done():
				t.Fatalf("want reason %q, got %q (%s), error %v", reason, mine.Reason, mine.Message, err)
			case <-tick.C:
			}
		}
	}
	t.Cleanup(func() {
		if out, err := c.lab.Kubectl(context.WithoutCancel(t.Context()), "delete", "daemonset", "-n", "default",
			"critical", "--ignore-not-found", "--timeout=10m"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	apply(lab.BusyboxImage, "sleep 100000", "1m")
	await("")
	apply(lab.BusyboxImage, "sleep 100000", "900")
	await("DaemonSetPodNotScheduled")
	apply("nowhere.example.com/none:1", "true", "1m")
	await("DaemonSetPodNotReady")
	apply(lab.BusyboxImage, "exit 3", "1m")
	await("DaemonSetPodCrashLooping")
	apply(lab.BusyboxImage, "sleep 100000", "1m")
	await("")
}
