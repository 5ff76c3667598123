package kinds

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
)

// The session of a volume is reported if the Node's status has listed that volume and lacks it now.
func TestDetachedSession(t *testing.T) {
	scan := MountScan(t, "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n")
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
