package csiregistration

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/test/fakecsi"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

func TestCSIRegistrationReasons(t *testing.T) {
	const ok, subject = "ok", "csi-driver/" + fakeName + "="
	registered := map[string]string{fakeName: "fake-node"}
	tests := []struct {
		name    string
		arrange func(n *csiNode)
		want    []string // findings; "ok" for none and no error, or the beginning of the error
		message string   // part of the first finding's message
	}{
		{name: "registered", arrange: func(n *csiNode) {
			n.start(fakecsi.Options{})
			n.nodeIDs = registered
		}, want: []string{ok}},
		{name: "GetInfo refused", arrange: func(n *csiNode) {
			n.start(fakecsi.Options{Knobs: fakecsi.Knobs{RefuseGetInfo: true}})
			n.nodeIDs = registered
		}, want: []string{subject + "CSIGetInfoFailed warning"}, message: "fake driver refuses GetInfo"},
		{name: "GetInfo hangs", arrange: func(n *csiNode) {
			n.start(fakecsi.Options{Knobs: fakecsi.Knobs{HangGetInfo: true}})
			n.nodeIDs = registered
		}, want: []string{subject + "CSIGetInfoFailed warning"}, message: "no answer in time"},
		{name: "not ready", arrange: func(n *csiNode) {
			n.start(fakecsi.Options{Knobs: fakecsi.Knobs{NotReady: true}})
			n.nodeIDs = registered
		}, want: []string{subject + "CSIDriverNotReady warning"}, message: "reports that it is not ready"},
		{name: "Probe fails", arrange: func(n *csiNode) {
			n.start(fakecsi.Options{Knobs: fakecsi.Knobs{ProbeError: "no backend"}})
			n.nodeIDs = registered
		}, want: []string{subject + "CSIDriverNotReady warning"}, message: "no backend"},
		{name: "Probe hangs", arrange: func(n *csiNode) {
			n.start(fakecsi.Options{Knobs: fakecsi.Knobs{HangProbe: true}})
			n.nodeIDs = registered
		}, want: []string{subject + "CSIDriverNotReady warning"}, message: "no answer in time"},
		{name: "NodeGetInfo fails", arrange: func(n *csiNode) {
			n.start(fakecsi.Options{Knobs: fakecsi.Knobs{NodeInfoError: "no metadata service"}})
		}, want: []string{subject + "CSIRegistrationRejected warning"}, message: "no metadata service"},
		{name: "empty node ID", arrange: func(n *csiNode) {
			n.start(fakecsi.Options{Knobs: fakecsi.Knobs{EmptyNodeID: true}})
			n.nodeIDs[fakeName] = ""
		}, want: []string{subject + "CSIRegistrationRejected warning"}, message: "empty node ID"},
		{name: "version unsupported", arrange: func(n *csiNode) {
			n.start(fakecsi.Options{Versions: []string{"0.3.0"}})
		},
			want: []string{subject + "CSIRegistrationRejected warning"}, message: "supports none of its versions"},
		{name: "killed", arrange: func(n *csiNode) {
			_ = n.start(fakecsi.Options{}).Abandon()
			n.nodeIDs = registered
		}, want: []string{subject + "CSISocketStale warning"}},
		{name: "killed, whose is not known", arrange: func(n *csiNode) { _ = n.start(fakecsi.Options{}).Abandon() },
			want: []string{"plugin-socket/REG/" + fakeName + "-reg.sock=CSISocketStale warning"}},
		{name: "socket missing, pod here", arrange: func(n *csiNode) {
			n.pods = []corev1.Pod{n.driverPod(fakeName, time.Hour)}
		},
			want: []string{subject + "CSISocketMissing warning"}, message: "kube-system/csi-node"},
		{name: "critical pod", arrange: func(n *csiNode) {
			n.pods = []corev1.Pod{n.driverPod(fakeName, time.Hour)}
			n.pods[0].Spec.PriorityClassName = "system-node-critical"
		}, want: []string{subject + "CSISocketMissing"}},
		{name: "pod has just started", arrange: func(n *csiNode) {
			n.pods = []corev1.Pod{n.driverPod(fakeName, 5*time.Second)}
		},
			want: []string{"csi-driver/" + fakeName + ": driver's pod kube-system/csi-node is starting"}},
		{name: "pod restarts again and again", arrange: func(n *csiNode) {
			n.pods = []corev1.Pod{n.driverPod(fakeName, 5*time.Second)}
			n.pods[0].Status.ContainerStatuses[0].RestartCount = 7
		}, want: []string{subject + "CSISocketMissing warning"}},
		{name: "was here before", arrange: func(n *csiNode) {
			n.nodeIDs = registered
		}, want: []string{subject + "CSIDriverPodMissing warning"}},
		{name: "volume in use", arrange: func(n *csiNode) {
			n.pods = []corev1.Pod{n.claims(fakeName)}
			n.nodeIDs = registered
		}, want: []string{subject + "CSIDriverPodMissing"}, message: "default/db"},
		{name: "inline volume in use", arrange: func(n *csiNode) {
			n.pods = []corev1.Pod{inline(fakeName)}
			n.nodeIDs = registered
		}, want: []string{subject + "CSIDriverPodMissing"}, message: "default/tenant"},
		{name: "volume in use, socket seen", arrange: func(n *csiNode) {
			n.pods = []corev1.Pod{inline(fakeName)}
			n.start(fakecsi.Options{Knobs: fakecsi.Knobs{NotReady: true}})
		}, want: []string{subject + "CSIDriverNotReady"}},
		// A driver that a pod merely names is no fault of the node: its author only needs the right to create pods.
		{name: "made-up driver of an inline volume", arrange: func(n *csiNode) {
			n.pods = []corev1.Pod{inline(fakeName)}
		}, want: []string{subject + "CSIDriverUnknown warning"}, message: "default/tenant"},
		{name: "claim of a driver that is not on this node", arrange: func(n *csiNode) {
			n.pods = []corev1.Pod{n.claims(fakeName)}
		}, want: []string{subject + "CSIDriverUnknown warning"}, message: "default/db"},
		{name: "pod that imitates a critical driver", arrange: func(n *csiNode) {
			n.pods = []corev1.Pod{n.driverPod(fakeName, time.Hour), inline(fakeName)}
			n.pods[0].Namespace, n.pods[0].Spec.PriorityClassName = "tenant", "system-node-critical"
		}, want: []string{subject + "CSISocketMissing warning"}},
		{name: "pod that imitates one by its mounts", arrange: func(n *csiNode) {
			n.pods = []corev1.Pod{n.driverPod(fakeName, time.Hour)}
			root := n.host.Paths.KubeletRoot
			n.pods[0].Namespace, n.pods[0].Spec.PriorityClassName = "tenant", "system-node-critical"
			n.pods[0].Spec.Containers[1].Args = nil
			for _, dir := range []string{"plugins_registry", "plugins/" + fakeName} {
				n.pods[0].Spec.Volumes = append(n.pods[0].Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
					HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(root, dir)}}})
			}
		}, want: []string{subject + "CSISocketMissing warning"}},
		// Without a directory of the host it cannot register a driver, so its start is no reason to wait.
		{name: "pod that imitates one by its arguments", arrange: func(n *csiNode) {
			n.pods = []corev1.Pod{n.claims(fakeName), n.driverPod(fakeName, 5*time.Second)}
			n.pods[1].Namespace, n.pods[1].Spec.Volumes = "tenant", nil
			n.nodeIDs = registered
		}, want: []string{subject + "CSIDriverPodMissing"}},
		{name: "apiserver unreachable", arrange: func(n *csiNode) {
			n.start(fakecsi.Options{})
			n.start(fakecsi.Options{Name: "sick.example.com", Knobs: fakecsi.Knobs{NotReady: true}})
			n.nodeErr = errors.New("connection refused")
		}, want: []string{"csi-driver/sick.example.com=CSIDriverNotReady warning", "csi-driver/" + fakeName +
			": whether kubelet registered the driver"}},
		{name: "kubelet unreachable", arrange: func(n *csiNode) {
			n.start(fakecsi.Options{})
			n.nodeIDs, n.podsErr = registered, errors.New("connection refused")
		}, want: []string{"pods of kubelet"}},
		{name: "no CSI here", arrange: func(*csiNode) {}, want: []string{"not applicable"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := newCSINode(t)
			tt.arrange(n)
			s := testCSISettings()
			if strings.HasSuffix(tt.name, "hangs") {
				s.Timeout = 3 * time.Second // for the calls before as well
			}
			found, err := New(s, nil).Run(t.Context(), n.host)
			got := checktest.Reasons(found)
			for i := range got {
				got[i] = strings.ReplaceAll(got[i], n.host.Paths.PluginRegistry, "REG")
			}
			if err != nil {
				last := tt.want[len(tt.want)-1]
				got = append(got, err.Error()[:min(len(last), len(err.Error()))])
			} else if len(got) == 0 {
				got = []string{ok}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("error %v (-want +got):\n%s", err, diff)
			}
			if len(found) > 0 && !strings.Contains(found[0].Message, tt.message) {
				t.Errorf("message %q does not say %q", found[0].Message, tt.message)
			}
		})
	}
}

func TestCSIRegistrationConfigured(t *testing.T) {
	n := newCSINode(t)
	s := testCSISettings()
	s.Drivers = []string{fakeName}
	found, err := New(s, nil).Run(t.Context(), n.host)
	if diff := cmp.Diff([]string{"csi-driver/" + fakeName + "=CSIDriverPodMissing"},
		checktest.Reasons(found)); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	s.Ignore = s.Drivers
	if found, err := New(s, nil).Run(t.Context(), n.host); len(found) > 0 || err == nil {
		t.Errorf("ignored: got %v, %v", checktest.Reasons(found), err)
	}
}

// A driver whose folder and socket have other names is known by its earlier answer, also by the next agent.
func TestCSIRegistrationLifeOfADriver(t *testing.T) {
	n := newCSINode(t)
	store := checktest.StateStore{}
	check := New(testCSISettings(), store)
	expect := func(want ...string) {
		t.Helper()
		found, err := check.Run(t.Context(), n.host)
		if diff := cmp.Diff(want, checktest.Reasons(found)); diff != "" || err != nil {
			t.Errorf("error %v (-want +got):\n%s", err, diff)
		}
		n.pass(15 * time.Second)
	}
	const subject = "csi-driver/" + fakeName + "="
	d := n.start(fakecsi.Options{})
	n.nodeIDs[fakeName] = "fake-node"
	expect()
	expect()
	if n.reads != 1 {
		t.Errorf("CSINode was read %d times while nothing changed, want 1", n.reads)
	}
	d.Set(fakecsi.Knobs{NotReady: true})
	expect(subject + "CSIDriverNotReady warning")
	d.Set(fakecsi.Knobs{})
	expect()
	_ = d.Abandon()
	expect(subject + "CSISocketStale warning")

	check = New(testCSISettings(), store) // the agent starts again, the apiserver is unreachable
	n.nodeErr = errors.New("unreachable")
	expect(subject + "CSISocketStale warning")
	n.nodeErr = nil

	if err := os.Remove(d.Socket()); err != nil {
		t.Fatal(err)
	}
	delete(n.nodeIDs, fakeName)
	expect(subject + "CSIDriverPodMissing warning")
	n.pods = []corev1.Pod{n.driverPod(fakeName, time.Hour)}
	expect(subject + "CSISocketMissing warning")

	n.start(fakecsi.Options{})
	expect(subject + "CSIRegistrationRejected warning")
	n.nodeIDs[fakeName] = "fake-node"
	n.pass(time.Minute)
	expect()

	n.pods = nil // removed for good: forgotten after a day
	_ = os.Remove(d.Socket())
	delete(n.nodeIDs, fakeName)
	n.pass(2 * time.Minute)
	expect(subject + "CSIDriverPodMissing warning")
	n.clock.Wall = n.clock.Wall.Add(48 * time.Hour) // the clock is set
	expect(subject + "CSIDriverPodMissing warning")
	n.pass(48 * time.Hour) // no run meanwhile: the machine was suspended
	expect(subject + "CSIDriverPodMissing warning")
	for range 25 * 6 {
		n.pass(10 * time.Minute)
		_, _ = check.Run(t.Context(), n.host)
	}
	if _, err := check.Run(t.Context(), n.host); err == nil || !strings.Contains(err.Error(), "not applicable") {
		t.Errorf("a driver that was removed long ago: %v, want not applicable", err)
	}
}

// The check forgets a removed driver after a day, although a pod names it: otherwise anyone who may create pods
// could keep each node of a former driver fatal. A pod with a mounted volume of it is in trouble as long as it runs.
func TestCSIRegistrationForgetsANamedDriver(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	crashed := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
	for name, test := range map[string]struct {
		status corev1.PodStatus
		want   string
	}{
		"named only": {corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{
			{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}},
			"CSIDriverUnknown warning"},
		"mounted": {corev1.PodStatus{Phase: corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{State: running}}}, "CSIDriverPodMissing"},
		"mounted for an init container": {corev1.PodStatus{Phase: corev1.PodPending,
			InitContainerStatuses: []corev1.ContainerStatus{{LastTerminationState: crashed}}}, "CSIDriverPodMissing"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newCSINode(t)
			n.nodeIDs[fakeName] = "fake-node"
			n.pods = []corev1.Pod{inline(fakeName)}
			n.pods[0].Status = test.status
			check := New(testCSISettings(), nil)
			checktest.Expect(t, check, n.host, "csi-driver/"+fakeName+"=CSIDriverPodMissing")
			delete(n.nodeIDs, fakeName)
			for range 26 * 6 {
				n.pass(10 * time.Minute)
				_, _ = check.Run(t.Context(), n.host)
			}
			checktest.Expect(t, check, n.host, "csi-driver/"+fakeName+"="+test.want)
		})
	}
}

// While kubelet rejects a driver, CSINode is read at growing intervals.
func TestCSINodeReadsBackOff(t *testing.T) {
	n := newCSINode(t)
	n.start(fakecsi.Options{})
	check := New(testCSISettings(), nil)
	for range 240 { // an hour
		if _, err := check.Run(t.Context(), n.host); err != nil {
			t.Fatal(err)
		}
		n.pass(15 * time.Second)
	}
	if n.reads < 12 || n.reads > 20 {
		t.Errorf("CSINode was read %d times in an hour, want about one in 5 minutes", n.reads)
	}
}

// Kubelet takes a moment to find out that it rejects a restarted driver: until then the old entry stands.
func TestCSINodeIsReadAgainWhenItHasSettled(t *testing.T) {
	n := newCSINode(t)
	d := n.start(fakecsi.Options{})
	n.nodeIDs[fakeName] = "fake-node"
	check := New(testCSISettings(), nil)
	run := func() []string {
		t.Helper()
		found, err := check.Run(t.Context(), n.host)
		if err != nil {
			t.Fatal(err)
		}
		n.pass(15 * time.Second)
		return checktest.Reasons(found)
	}
	run()
	_ = d.Stop()
	n.start(fakecsi.Options{Knobs: fakecsi.Knobs{NodeInfoError: "unreachable"}})
	if got := run(); got != nil || n.reads != 2 {
		t.Fatalf("got %v after %d reads, want the old entry of the second", got, n.reads)
	}
	delete(n.nodeIDs, fakeName)
	var got []string
	for range 4 { // a minute
		got = run()
	}
	if diff := cmp.Diff([]string{"csi-driver/" + fakeName + "=CSIRegistrationRejected warning"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Plugins that never answer cost one deadline, not the sum of them: they are called in parallel.
func TestCSIRegistrationSideBySide(t *testing.T) {
	n := newCSINode(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		n.start(fakecsi.Options{Name: name, Knobs: fakecsi.Knobs{HangGetInfo: true}})
	}
	n.start(fakecsi.Options{})
	n.nodeIDs[fakeName] = "fake-node"
	var asked atomic.Int32
	all, getInfo := make(chan struct{}), n.host.Plugins.GetInfo
	n.host.Plugins.GetInfo = func(ctx context.Context, socket string) (kubelet.PluginInfo, error) {
		if asked.Add(1) == maxParallel {
			close(all)
		}
		select {
		case <-all:
		case <-ctx.Done():
			t.Error("a plugin waits for the deadline of another")
		}
		if !strings.Contains(socket, fakeName) {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Second)
			defer cancel()
		}
		return getInfo(ctx, socket)
	}
	found, err := New(testCSISettings(), nil).Run(t.Context(), n.host)
	if len(found) != 4 || err != nil {
		t.Errorf("got %v, %v", checktest.Reasons(found), err)
	}
}
