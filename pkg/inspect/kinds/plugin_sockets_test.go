package kinds_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// socket makes a socket below kubelet's root, with or without a listener.
func (n *node) socket(listens bool, parts ...string) {
	n.t.Helper()
	name := filepath.Join(append([]string{n.Host.Paths.KubeletRoot}, parts...)...)
	n.Mkdir(filepath.Dir(name))
	n.t.Chdir(filepath.Dir(name)) // the whole path may be too long
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Base(name), Net: "unix"})
	if err != nil {
		n.t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	if !listens {
		if err := listener.Close(); err != nil {
			n.t.Fatal(err)
		}
		return
	}
	n.t.Cleanup(func() { listener.Close() })
}

// mounts makes a living pod mount a directory below kubelet's root.
func (n *node) mounts(dir string, ready bool) {
	dir = filepath.Join(n.Host.Paths.KubeletRoot, dir)
	n.Kubelet[0].Spec.Volumes = append(n.Kubelet[0].Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: dir}}})
	if ready {
		n.Kubelet[0].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
}

// link makes a link beside kubelet's root; target is relative to the link's directory, or absolute.
func (n *node) link(name, target string) {
	n.t.Helper()
	beside := filepath.Dir(n.Host.Paths.KubeletRoot)
	if !filepath.IsAbs(target) {
		target = beside + "/" + target // not cleaned
	}
	if err := os.Symlink(target, filepath.Join(beside, name)); err != nil {
		n.t.Fatal(err)
	}
}

// A socket is a leftover if it has no listener and no living pod may be about to listen.
func TestPluginSockets(t *testing.T) {
	gone := map[string]object.Verdict{"plugins_registry/a.example.com-reg.sock": object.Unowned,
		"plugins_registry/b.example.com-reg.sock": object.Foreign, "device-plugins/gpu.sock": object.Unowned,
		"plugins/a.example.com/csi.sock": object.Unowned}
	for name, test := range map[string]struct {
		change func(*node)
		differ map[string]object.Verdict
	}{
		"gone": {func(*node) {}, nil},
		"its driver's pod is there": {func(n *node) {
			n.mounts("plugins/a.example.com/", true)
			n.mounts("plugins_registry", true)
		}, map[string]object.Verdict{"plugins_registry/a.example.com-reg.sock": object.Live,
			"plugins/a.example.com/csi.sock": object.Live}},
		"a pod beside it is not ready": {func(n *node) { n.mounts("device-plugins", false) },
			map[string]object.Verdict{"device-plugins/gpu.sock": object.Live}},
		"a pod beside it is ready": {func(n *node) { n.mounts("device-plugins", true) }, nil},
		"pods name kubelet's directory by a link": {func(n *node) {
			n.link("default", "kubelet")
			n.mounts("../default/plugins/a.example.com", false)
			n.mounts("../default/device-plugins", false)
		}, map[string]object.Verdict{"plugins_registry/a.example.com-reg.sock": object.Live,
			"plugins/a.example.com/csi.sock": object.Live, "device-plugins/gpu.sock": object.Live}},
		"by a link beside a link": {func(n *node) {
			n.link("other", "kubelet/device-plugins")
			n.link("another", "other/../")
			n.mounts("../another/device-plugins", false)
		}, map[string]object.Verdict{"device-plugins/gpu.sock": object.Live}},
		"links that lead nowhere, and round": {func(n *node) {
			n.link("round", "round")
			n.link("nowhere", "absent/kubelet")
			n.mounts("../round/device-plugins", false)
			n.mounts("../nowhere/device-plugins", false)
		}, nil},
		"a link of a filesystem that hangs is not read": {func(n *node) {
			hung := hosttest.HangingFUSE(n.t)
			n.link("default", hung)
			n.mounts("../default/link/device-plugins", false)
			n.mounts("../default", false)
		}, nil},
		"a pod that has ended": {func(n *node) {
			n.mounts("plugins/a.example.com", false)
			n.Kubelet[0].Status.Phase = corev1.PodFailed
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			for socket := range gone {
				n.socket(strings.Contains(socket, "b.example.com"), socket)
			}
			n.socket(false, "device-plugins", "kubelet.sock")
			test.change(n)
			want := map[string]object.Verdict{}
			for socket, verdict := range gone {
				if differs, ok := test.differ[socket]; ok {
					verdict = differs
				}
				want[socket] = verdict
			}
			report := n.ripen(t, object.History{}, n.inspector().Within(time.Minute))
			inspecttest.NoErrors(t, report)
			if diff := cmp.Diff(want, verdictsByName(report, object.PluginSocket, func(o object.Assessment) string {
				return strings.TrimPrefix(o.ID, n.Host.Paths.KubeletRoot+"/")
			})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A restarting plugin has ten minutes each time.
func TestYoungPluginSocket(t *testing.T) {
	n := newNode(t)
	n.socket(false, "plugins_registry/a-reg.sock")
	i, history := n.inspector(), object.History{}
	for range 5 {
		var report object.Report
		report, history = i.Pass(t.Context(), history)
		for _, o := range report.Objects {
			if o.Kind == object.PluginSocket && o.Verdict != object.Live {
				t.Errorf("%s: %s", o.Verdict, o.Why)
			}
		}
		n.After(settings().Grace / 6)
	}
}
