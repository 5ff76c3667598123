package inspect

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

const limit = 10 * time.Second

// stubborn is a call that ignores its context and returns when the test ends.
func stubborn[T any](end chan struct{}) func(context.Context) (T, error) {
	return func(context.Context) (T, error) {
		<-end
		var none T
		return none, context.Canceled
	}
}

// Whatever hangs, a pass ends in time, reports the hanging call, and has the rest.
func TestPassEndsInTime(t *testing.T) {
	suspect := func(n *fullNode) { n.delete(inspecttest.UIDOf(3)) }
	tests := map[string]struct {
		hang    func(h *host.Host, end chan struct{})
		what    string // of the failure
		why     string // part of it
		verdict object.Verdict
		gate    string
	}{
		"containerd, all of it": {func(h *host.Host, _ chan struct{}) {
			h.Runtime = host.Runtime{
				Version: hosttest.Hang[*cri.VersionResponse], Status: hosttest.Hang[*cri.StatusResponse],
				Sandboxes: hosttest.Hang[[]*cri.PodSandbox], Containers: hosttest.Hang[[]*cri.Container],
				Process: h.Runtime.Process,
			}
			h.Containerd = host.Containerd{Containers: hosttest.Hang[[]containers.Container],
				Leases: hosttest.Hang[[]leases.Lease]}
		}, "runtime", "deadline", "", "runtime-heard"},
		"the runtime's status": {func(h *host.Host, end chan struct{}) {
			h.Runtime.Status = stubborn[*cri.StatusResponse](end)
		},
			"runtime", "the runtime hangs: no answer within", object.Unknown, "runtime-heard"},
		"containerd's leases": {func(h *host.Host, end chan struct{}) {
			h.Containerd.Leases = stubborn[[]leases.Lease](end)
		},
			"containerd", "containerd hangs", object.Unknown, "runtime-heard"},
		"kubelet": {func(h *host.Host, end chan struct{}) { h.Kubelet.Pods = stubborn[[]corev1.Pod](end) },
			"kubelet", "kubelet hangs", object.Unknown, "kubelet-heard"},
		"kubelet's counts": {func(h *host.Host, end chan struct{}) {
			h.Kubelet.Metric = func(context.Context, string) (map[string]float64, error) {
				<-end
				return nil, context.Canceled
			}
		}, "", "", object.Unknown, "kubelet-not-working"},
		"the search for kubelet": {func(h *host.Host, end chan struct{}) {
			h.Kubelet.Process = func() (host.Process, error) { <-end; return host.Process{}, context.Canceled }
		}, "", "", object.Unknown, "kubelet-uptime"},
		"the apiserver": {func(h *host.Host, end chan struct{}) { h.Cluster.Pods = stubborn[[]corev1.Pod](end) },
			"apiserver", "the apiserver hangs", object.Unknown, "apiserver-heard"},
		"the apiserver's answer to a name": {func(h *host.Host, end chan struct{}) {
			h.Cluster.Pod = func(context.Context, string, string) (*corev1.Pod, error) {
				<-end
				return nil, context.Canceled
			}
		}, "", "", object.Candidate, ""},
		"everything": {func(h *host.Host, end chan struct{}) {
			h.Runtime.Sandboxes, h.Runtime.Containers = stubborn[[]*cri.PodSandbox](end),
				stubborn[[]*cri.Container](end)
			h.Containerd.Leases, h.Kubelet.Pods = stubborn[[]leases.Lease](end), stubborn[[]corev1.Pod](end)
			h.Cluster.Pods, h.Cluster.Node = stubborn[[]corev1.Pod](end), stubborn[*corev1.Node](end)
			h.Kubelet.Process = func() (host.Process, error) { <-end; return host.Process{}, context.Canceled }
		}, "kubelet", "kubelet hangs", "", "kubelet-heard"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newFullNode(t)
				suspect(n)
				end := make(chan struct{})
				test.hang(n.host, end)
				begun := time.Now()
				report, _ := New(n.host, n.settings, n.inspector.log).Within(limit).Pass(t.Context(), nil, object.Sandbox,
					object.Container)
				took := time.Since(begun)
				close(end)
				synctest.Wait()
				if took > limit {
					t.Errorf("took %s", took)
				}
				reported := slices.ContainsFunc(report.Errors, func(f object.Failure) bool {
					return f.What == test.what && strings.Contains(f.Error, test.why)
				})
				if test.what != "" && !reported {
					t.Errorf("errors: %+v", report.Errors)
				}
				for _, g := range report.Gates {
					if g.Name == test.gate && g.Open {
						t.Errorf("gate %s is open: %s", g.Name, g.Why)
					}
				}
				if test.verdict != "" {
					if verdict, why := n.verdict(report, inspecttest.UIDOf(3)); verdict != test.verdict {
						t.Errorf("%s: %s", verdict, why)
					}
				}
			})
		})
	}
}

// Without a limit no call is abandoned: only the caller's context ends it.
func TestNoLimitAbandonsNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFullNode(t)
		n.host.Kubelet.Pods = hosttest.Hang[[]corev1.Pod]
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		New(n.host, n.settings, n.inspector.log).Pass(ctx, nil, object.Sandbox)
		if took := time.Since(begun); took != time.Minute {
			t.Errorf("took %s", took)
		}
	})
}
