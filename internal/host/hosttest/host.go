// Package hosttest makes hosts for tests: fixture trees instead of /proc and /sys, and clients that answer like those
// of a healthy, empty node until a test changes them. It is for tests only.
package hosttest

import (
	"context"
	"testing"
	"time"

	tasks "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/internal/host/watch"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The properties of every fake host.
const (
	NodeName   = "node-a"
	BootID     = "6e3ba5b5-7cc7-4d2a-8a53-5bb0e4a3f6e1"
	MachineID  = "9f2b1c7e4d6a4f0e8b3a5c1d2e7f6a90"
	KubeletPID = 900
	RuntimePID = 800
)

// Option changes a host.
type Option func(*host.Host)

// Host returns a healthy node without pods: an empty fixture tree, the default paths, and clients that answer from
// memory. Options or the test can replace any of them.
func Host(t testing.TB, options ...Option) *host.Host {
	t.Helper()
	h := &host.Host{
		NodeName:   NodeName,
		Paths:      discover.DefaultPaths(),
		Files:      host.Files{Root: t.TempDir()},
		Clock:      Clock,
		Kubelet:    Kubelet(),
		Runtime:    Runtime(),
		Containerd: Containerd(),
		Cluster:    Cluster(),
		Inotify:    func() (watch.InotifyRoom, error) { return watch.InotifyRoom{Instances: true, Watches: true}, nil },
		TimeClock:  func() (host.ClockState, error) { return host.ClockState{MaxError: 20 * time.Millisecond}, nil },
		Systemd: systemd.Systemd{Units: Answer(systemd.Units{}, nil),
			LoadState: func(context.Context, string) (string, error) { return "loaded", nil }},
		Prober: probe.Prober{Do: func(context.Context, probe.ProbeRequest) (probe.ProbeAnswer, error) {
			return probe.ProbeAnswer{}, nil
		}},
	}
	for _, option := range options {
		option(h)
	}
	return h
}

// Fixture returns a host with the files of a txtar archive: see Extract, and RootsDaemons.
func Fixture(t testing.TB, archive string, options ...Option) *host.Host {
	t.Helper()
	root := t.TempDir()
	Extract(t, archive, root)
	RootsDaemons(t, root)
	return Host(t, append([]Option{func(h *host.Host) { h.Files = host.Files{Root: root} }}, options...)...)
}

// Now returns the fixed time of fake hosts: two days after their boot.
func Now() finding.Timestamp {
	return finding.Timestamp{Wall: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Boot: BootID,
		SinceBoot: 48 * time.Hour}
}

// Clock is the clock of a fake host.
func Clock() finding.Timestamp { return Now() }

// Answer returns a call that always returns the same.
func Answer[T any](value T, err error) func(context.Context) (T, error) {
	return func(context.Context) (T, error) { return value, err }
}

// Hang is a call that never gets an answer: it waits for the end of ctx.
func Hang[T any](ctx context.Context) (T, error) {
	<-ctx.Done()
	var none T
	return none, ctx.Err()
}

// Kubelet has been up for a day and has no pods.
func Kubelet() host.Kubelet {
	return host.Kubelet{
		Healthz: Answer("ok", nil),
		Pods:    Answer([]corev1.Pod(nil), nil),
		Metric:  func(context.Context, string) (map[string]float64, error) { return map[string]float64{}, nil },
		Process: func() (host.Process, error) {
			return process(KubeletPID, "kubelet", "/usr/bin/kubelet"), nil
		},
	}
}

// Runtime is a containerd that has been up for a day, is ready, and is empty.
func Runtime() host.Runtime {
	return host.Runtime{
		Version: Answer(&cri.VersionResponse{Version: "0.1.0", RuntimeName: "containerd", RuntimeVersion: "1.6.20",
			RuntimeApiVersion: "v1"}, nil),
		Status: Answer(&cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
			{Type: "RuntimeReady", Status: true}, {Type: "NetworkReady", Status: true},
		}}}, nil),
		Sandboxes:  Answer([]*cri.PodSandbox(nil), nil),
		Containers: Answer([]*cri.Container(nil), nil),
		Images:     Answer([]*cri.Image(nil), nil),
		ImageID:    func(context.Context, string) (string, error) { return "", nil },
		ImageDirs:  Answer([]string(nil), nil),
		SandboxStatus: func(_ context.Context, id string) (*cri.PodSandboxStatusResponse, error) {
			return nil, NotFound("sandboxes", id)
		},
		Process: Answer(process(RuntimePID, "containerd", "/usr/bin/containerd"), nil),
	}
}

// Containerd has an empty namespace.
func Containerd() host.Containerd {
	return host.Containerd{
		Containers: Answer([]containers.Container(nil), nil),
		Images:     Answer([]images.Image(nil), nil),
		Leases:     Answer([]leases.Lease(nil), nil),
		Tasks:      Answer([]*tasks.Process(nil), nil),
		Sandboxes:  Answer([]string(nil), nil),
		Snapshots:  func(context.Context, string) ([]snapshots.Info, error) { return nil, nil },
	}
}

// Cluster knows the node, and no pods on it.
func Cluster() host.Cluster {
	return host.Cluster{
		Pods: Answer([]corev1.Pod(nil), nil),
		Pod: func(_ context.Context, _, name string) (*corev1.Pod, error) {
			return nil, NotFound("pods", name)
		},
		Node:       func(context.Context) (*corev1.Node, error) { return Node(), nil },
		CSINode:    Answer(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: NodeName, UID: "csinode"}}, nil),
		DaemonSets: Answer([]appsv1.DaemonSet(nil), nil),
		ControllerRevisions: func(context.Context, string) ([]appsv1.ControllerRevision, error) {
			return nil, nil
		},
	}
}

// Node is the Node object of a fake host.
func Node() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: NodeName, UID: "node"},
		Status: corev1.NodeStatus{
			NodeInfo:   corev1.NodeSystemInfo{MachineID: MachineID, BootID: BootID},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// NotFound is the apiserver's error for a missing object.
func NotFound(resource, name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name)
}

// process was started a day after the boot, which is a day ago. Start times are in ticks of 10 ms.
func process(pid int, args ...string) host.Process {
	return host.Process{PID: pid, StartTime: 24 * 3600 * 100, Comm: args[0], Args: args[1:]}
}
