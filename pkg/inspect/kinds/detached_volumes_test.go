package kinds_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host/volume"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// A volume that is mounted on the node is reported once the Node's status lacks it, whether or not a pod uses it; not
// one that has just been attached, whose driver never attaches, or of which only the directory is left.
func TestDetachedVolumes(t *testing.T) {
	n := newNode(t)
	n.attachedTo(ofDriver+"kept", ofDriver+"taken", ofDriver+"used")
	for _, handle := range []string{"kept", "taken", "used"} {
		n.stage(handle)
	}
	n.publish(living, "used")
	n.Write(`{"driverName":"nfs.example.com","volumeHandle":"share"}`, csiPlugins, "nfs.example.com", volume.HandleSum("share"),
		"vol_data.json")
	n.Mount("tmpfs", n.Mkdir(n.Host.Paths.KubeletRoot, csiPlugins, "nfs.example.com", volume.HandleSum("share"), "globalmount"),
		"tmpfs", 0)
	i, history := n.inspector(), object.History{}
	detached := func(minutes int) map[string]object.Verdict {
		t.Helper()
		var report object.Report
		for range minutes {
			n.After(time.Minute)
			report, history = i.Pass(t.Context(), history)
			inspecttest.NoErrors(t, report)
			for _, o := range kinds.Releasable(report).Objects {
				if o.Kind == object.DetachedVolume {
					t.Error("it would be released")
				}
			}
		}
		return verdictsByName(report, object.DetachedVolume, handleOf)
	}
	if diff := cmp.Diff(map[string]object.Verdict{}, detached(50)); diff != "" {
		t.Error("attached", diff)
	}
	n.attachedTo(ofDriver+"kept", ofDriver+"new")
	n.Write(`{"driverName":"d.example.com","volumeHandle":"directory"}`, csiPlugins, "d.example.com",
		volume.HandleSum("directory"), "vol_data.json")
	detached(39) // until the Node is asked again
	n.stage("new")
	if diff := cmp.Diff(map[string]object.Verdict{"taken": object.Unowned, "used": object.Unowned},
		detached(25)); diff != "" {
		t.Error("detached by force", diff)
	}
	n.attachedTo(ofDriver+"kept", ofDriver+"new", ofDriver+"used")
	if diff := cmp.Diff(map[string]object.Verdict{"taken": object.Unowned}, detached(11)); diff != "" {
		t.Error("attached again", diff)
	}
	n.ClusterErr = errors.New("away") // the last answer stays
	got := map[string]object.Verdict{}
	for range 12 {
		n.After(time.Minute)
		var report object.Report
		report, history = i.Pass(t.Context(), history)
		got = verdictsByName(report, object.DetachedVolume, handleOf)
	}
	if diff := cmp.Diff(map[string]object.Verdict{"taken": object.Unowned}, got); diff != "" {
		t.Error("the apiserver is away", diff)
	}
}

// A volume that is staged after the last answer of the apiserver may have been attached since: it is not reported
// before a newer answer lacks it too.
func TestNewVolumeIsNotDetached(t *testing.T) {
	n := newNode(t)
	n.attachedTo(ofDriver + "old")
	n.stage("old")
	i := n.inspector()
	_, history := passes(t, n, i, object.History{}, 1, time.Minute)
	n.attachedTo(ofDriver+"old", ofDriver+"new")
	n.stage("new")
	for range 30 {
		var report object.Report
		if report, history = passes(t, n, i, history, 1, time.Minute); len(verdicts(report, object.DetachedVolume)) > 0 {
			t.Fatalf("reported: %v", verdicts(report, object.DetachedVolume))
		}
	}
}

// volumesInUse of kubelet names only volumes of drivers that attach: it is evidence where volumesAttached is empty, as
// after the Node object was made anew.
func TestDetachedVolumeByVolumesInUse(t *testing.T) {
	n := newNode(t)
	n.stage("lost")
	n.NodeObject.Status.VolumesInUse = []corev1.UniqueVolumeName{ofDriver + "lost"}
	report, _ := passes(t, n, n.inspector(), object.History{}, 30, time.Minute)
	if diff := cmp.Diff(map[object.Verdict]int{object.Unowned: 1}, verdicts(report, object.DetachedVolume)); diff != "" {
		t.Error(diff)
	}
	o := one(t, report, object.DetachedVolume, "lost")
	if !strings.HasSuffix(o.Facts["mounted"], "/globalmount") || !strings.HasPrefix(o.Facts["attachment"], "csi-") {
		t.Errorf("%v", o.Facts)
	}
}
