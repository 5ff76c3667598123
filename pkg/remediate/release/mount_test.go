package release

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// A mount that another pod keeps busy stays, and the report names the holder.
func TestBusyMountNamesHolder(t *testing.T) {
	w := newWorld(t)
	uid := mutatetest.UID(t)
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
	if ended, err := w.Mutator.Ended(holder); ended || err != nil {
		t.Errorf("the holder ended: %v, %v", ended, err)
	}
	if again := w.release(); !again.Acted() { // no RetryAfter in this test
		t.Log(describe(again))
	}
}

// The volumes of a living CSI driver are its own. An unknown driver may be alive.
func TestCSIMount(t *testing.T) {
	for name, test := range map[string]struct {
		driver string
		alive  bool
		policy bool
		want   string // why it stays; empty: it goes
	}{
		"driver is alive":           {"a.example.com", true, false, "owns the volume"},
		"driver is gone":            {"a.example.com", false, false, ""},
		"driver is not known":       {"", false, false, "not known"},
		"driver has a strange name": {"../../etc", false, false, "not known"},
		"alive, but policy":         {"a.example.com", true, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.settings.UnmountCSI = test.policy
			uid := mutatetest.UID(t)
			volume := w.PodDir(uid, "volumes/kubernetes.io~csi/pvc-1")
			if test.driver != "" {
				note, _ := json.Marshal(map[string]string{"driverName": test.driver, "volumeHandle": "v",
					"specVolID": "pvc-1"})
				w.Write(filepath.Join(volume, "vol_data.json"), string(note))
			}
			source := w.Mkdir(filepath.Join(w.Dir, "disk"))
			w.Write(filepath.Join(source, "canary"), "alive")
			m := w.Mount(source, filepath.Join(volume, "mount"), "", unix.MS_BIND)
			if test.alive {
				w.listen(filepath.Join(w.Host.Paths.PluginRegistry, test.driver+"-reg.sock"))
			}
			steps, err := w.runner().Plan(t.Context(), w.inspect())
			if err != nil || !strings.Contains(steps[0].Blocked, test.want) {
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

// A zombie holds no resources and does not block the release.
func TestZombie(t *testing.T) {
	w := newWorld(t)
	uid := mutatetest.UID(t)
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
