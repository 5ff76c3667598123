package remediate

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/hand/handtest"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// A mount that another pod keeps busy stays, and the report names who does.
func TestBusyMountNamesHolder(t *testing.T) {
	w := newWorld(t)
	uid := handtest.UID(t)
	m := w.Mount("tmpfs", w.PodDir(uid, "volumes/kubernetes.io~empty-dir/cache"), "tmpfs", 0)
	cgroups := w.Cgroups(w.living, "")
	holder := w.Shell(w.living, cgroups, "cd "+m.Point+"; echo ready; exec sleep 600")
	outcome := w.release()
	text := describe(outcome)
	if !strings.Contains(text, "held by") || !strings.Contains(text, w.living) || !strings.Contains(text, "cwd") {
		t.Error(text)
	}
	if got := w.Mounts(m.Point); len(got) != 1 || got[0] != m {
		t.Errorf("mount: %+v", got)
	}
	if ended, err := w.Hand.Ended(holder); ended || err != nil {
		t.Errorf("the holder ended: %v, %v", ended, err)
	}
	if again := w.release(); !again.Acted() { // no RetryAfter in this test
		t.Log(describe(again))
	}
}

// As long as a CSI driver is alive, its volumes are its own. A driver that is not known may be alive.
func TestCSIMount(t *testing.T) {
	for name, test := range map[string]struct {
		driver string
		alive  bool
		policy bool
		want   string // why it stays; empty: it goes
	}{
		"driver is alive":           {"a.example.com", true, false, "owns the volume"},
		"driver is gone":            {"a.example.com", false, false, ""},
		"driver is not known":       {"", false, false, "cannot be told"},
		"driver has a strange name": {"../../etc", false, false, "cannot be told"},
		"alive, but policy":         {"a.example.com", true, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.settings.UnmountCSI = test.policy
			uid := handtest.UID(t)
			volume := w.PodDir(uid, "volumes/kubernetes.io~csi/pvc-1")
			if test.driver != "" {
				note, _ := json.Marshal(map[string]string{"driverName": test.driver})
				w.Write(filepath.Join(volume, "vol_data.json"), string(note))
			}
			source := w.Mkdir(filepath.Join(w.Dir, "disk"))
			w.Write(filepath.Join(source, "canary"), "alive")
			m := w.Mount(source, filepath.Join(volume, "mount"), "", unix.MS_BIND)
			if test.alive {
				listener, err := net.Listen("unix", filepath.Join(w.Host.Paths.PluginRegistry, test.driver+"-reg.sock"))
				if err != nil {
					t.Fatal(err)
				}
				defer listener.Close()
			}
			steps, err := w.runner().Plan(t.Context(), w.inspect())
			if err != nil || !strings.Contains(steps[0].NotNow, test.want) {
				t.Errorf("plan: %v, %+v", err, steps)
			}
			text := describe(w.release())
			if stays := len(w.Mounts(m.Point)) == 1; stays != (test.want != "") || !strings.Contains(text, test.want) {
				t.Errorf("stays %v: %s", stays, text)
			}
			if data, err := os.ReadFile(filepath.Join(source, "canary")); err != nil || string(data) != "alive" {
				t.Errorf("canary: %q, %v", data, err)
			}
		})
	}
}

// The server of a volume is gone for good. What hangs on it cannot be killed until the volume is given up.
func TestDeadServer(t *testing.T) {
	w := newWorld(t)
	uid := handtest.UID(t)
	origin := hosttest.HangingFUSE(t)
	m := w.Mount(origin, w.PodDir(uid, "volumes/kubernetes.io~nfs/data"), "", unix.MS_BIND)
	// A second mount of the same filesystem, which somebody else may need: nothing is forced.
	text := describe(w.release())
	if len(w.Mounts(m.Point)) == 0 || !strings.Contains(text, "the same filesystem is mounted on") {
		t.Fatalf("shared: %s", text)
	}
	if err := unix.Unmount(origin, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", origin, "tmpfs", 0, ""); err != nil { // for the fixture's end
		t.Fatal(err)
	}
	if errors.Is(unix.Access("/sys/fs/fuse/connections", unix.F_OK), unix.ENOENT) {
		t.Skip("needs FUSE")
	}
	text = describe(w.release())
	// Whoever made a mount namespace meanwhile, such as another test, has a copy of the mount: rightly nothing is forced then.
	for wait := time.After(time.Minute); strings.Contains(text, "in the mount namespace of process"); text = describe(w.release()) {
		select {
		case <-time.After(time.Second):
		case <-wait:
			t.Fatalf("somebody keeps a copy of the mount: %s", text)
		}
	}
	if left := w.left(uid); len(left) > 0 {
		t.Errorf("left: %q\n%s", left, text)
	}
}

// A zombie holds nothing and stops nothing.
func TestZombie(t *testing.T) {
	w := newWorld(t)
	uid := handtest.UID(t)
	w.Write(w.PodDir(uid, "etc-hosts"), "hosts")
	cgroups := w.Cgroups(uid, "")
	child := exec.Command("/bin/sh", "-c", "read x")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { child.Wait() }) // only then its parent takes note
	for _, dir := range cgroups {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(itoa(child.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	in.Close()
	w.await(child.Process.Pid, 'Z')
	outcome := w.release()
	if len(outcome.Pods) != 1 || outcome.Pods[0].Result != Released {
		t.Error(describe(outcome))
	}
	if again := w.release(); again.Acted() {
		t.Errorf("a second time: %s", describe(again))
	}
}
