package listers

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host/volume"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
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
	i, history := n.inspector(), inspect.History{}
	detached := func(minutes int) map[string]inspect.Verdict {
		t.Helper()
		var report inspect.Report
		for range minutes {
			n.After(time.Minute)
			report, history = i.Pass(t.Context(), history)
			noErrors(t, report)
			for _, o := range inspect.Releasable(report).Objects {
				if o.Kind == inspect.DetachedVolume {
					t.Error("it would be released")
				}
			}
		}
		return verdictsByName(report, inspect.DetachedVolume, handleOf)
	}
	if diff := cmp.Diff(map[string]inspect.Verdict{}, detached(50)); diff != "" {
		t.Error("attached", diff)
	}
	n.attachedTo(ofDriver+"kept", ofDriver+"new")
	n.Write(`{"driverName":"d.example.com","volumeHandle":"directory"}`, csiPlugins, "d.example.com",
		volume.HandleSum("directory"), "vol_data.json")
	detached(39) // until the Node is asked again
	n.stage("new")
	if diff := cmp.Diff(map[string]inspect.Verdict{"taken": inspect.Unowned, "used": inspect.Unowned}, detached(25)); diff != "" {
		t.Error("detached by force", diff)
	}
	n.attachedTo(ofDriver+"kept", ofDriver+"new", ofDriver+"used")
	if diff := cmp.Diff(map[string]inspect.Verdict{"taken": inspect.Unowned}, detached(11)); diff != "" {
		t.Error("attached again", diff)
	}
	n.ClusterErr = errors.New("away") // the last answer stays
	got := map[string]inspect.Verdict{}
	for range 12 {
		n.After(time.Minute)
		var report inspect.Report
		report, history = i.Pass(t.Context(), history)
		got = verdictsByName(report, inspect.DetachedVolume, handleOf)
	}
	if diff := cmp.Diff(map[string]inspect.Verdict{"taken": inspect.Unowned}, got); diff != "" {
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
	_, history := passes(t, n, i, inspect.History{}, 1, time.Minute)
	n.attachedTo(ofDriver+"old", ofDriver+"new")
	n.stage("new")
	for range 30 {
		var report inspect.Report
		if report, history = passes(t, n, i, history, 1, time.Minute); len(verdicts(report, inspect.DetachedVolume)) > 0 {
			t.Fatalf("reported: %v", verdicts(report, inspect.DetachedVolume))
		}
	}
}

// volumesInUse of kubelet names only volumes of drivers that attach: it is evidence where volumesAttached is empty, as
// after the Node object was made anew.
func TestDetachedVolumeByVolumesInUse(t *testing.T) {
	n := newNode(t)
	n.stage("lost")
	n.NodeObject.Status.VolumesInUse = []corev1.UniqueVolumeName{ofDriver + "lost"}
	report, _ := passes(t, n, n.inspector(), inspect.History{}, 30, time.Minute)
	if diff := cmp.Diff(map[inspect.Verdict]int{inspect.Unowned: 1}, verdicts(report, inspect.DetachedVolume)); diff != "" {
		t.Error(diff)
	}
	o := one(t, report, inspect.DetachedVolume, "lost")
	if !strings.HasSuffix(o.Facts["mounted"], "/globalmount") || !strings.HasPrefix(o.Facts["attachment"], "csi-") {
		t.Errorf("%v", o.Facts)
	}
}

// The session of a volume is reported if the Node's status has listed that volume and lacks it now.
func TestDetachedSession(t *testing.T) {
	scan := inspecttest.MountScan(t, "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n")
	n := inspecttest.NewNode(t)
	attach := func(claims ...string) {
		n.NodeObject.Status.VolumesAttached = nil
		for _, claim := range claims {
			n.NodeObject.Status.VolumesAttached = append(n.NodeObject.Status.VolumesAttached,
				corev1.AttachedVolume{Name: corev1.UniqueVolumeName("kubernetes.io/csi/d.example.com^" + claim)})
		}
	}
	scan.Host.Clock, scan.Host.Cluster = n.Host.Clock, n.Host.Cluster
	for session, target := range map[string]string{"session1": claim("1"), "session2": claim("2"), "session3": claim("3")} {
		dir := scan.Host.Files.Path("/sys/class/iscsi_session/" + session)
		n.Mkdir(filepath.Join(dir, "device"))
		for name, text := range map[string]string{"targetname": "iqn.2019-10.example:" + target, "state": "LOGGED_IN"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	var a attached
	look := func() (found []string) {
		t.Helper()
		for range 12 {
			n.After(time.Minute)
			if _, err := a.list(t.Context(), scan); err != nil {
				t.Fatal(err)
			}
			objects, err := a.lacking(t.Context(), scan)
			if err != nil {
				t.Fatal(err)
			}
			found = nil
			for _, o := range objects {
				found = append(found, filepath.Base(o.ID))
			}
		}
		return found
	}
	attach(claim("1"), claim("2")) // of the third it is not known
	if found := look(); found != nil {
		t.Error("attached:", found)
	}
	attach(claim("1"))
	n.After(askAttached)
	if diff := cmp.Diff([]string{"session2"}, look()); diff != "" {
		t.Error(diff)
	}
}
