package release

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// The dead pod had a subPath of a hostPath, and a local volume, below whose sources the host later mounted disks. On a
// shared root they appear in the pod's directory: they are unmounted there and nowhere else.
func TestReleaseKeepsDisksOfHost(t *testing.T) {
	w := newWorld(t)
	uid := mutatetest.UID(t)
	data, local := w.Mkdir(filepath.Join(w.Dir, "data")), filepath.Join(w.Dir, "local")
	w.Mount("local", local, "tmpfs", 0)
	planned := []string{w.PodDir(uid, "volume-subpaths/data/app/0"),
		w.PodDir(uid, "volumes/kubernetes.io~local-volume/pv")}
	w.Mount(data, planned[0], "", unix.MS_BIND)
	w.Mount(local, planned[1], "", unix.MS_BIND)
	for _, dir := range []string{data, local} {
		disk := w.Mount("disk", filepath.Join(dir, "disk"), "tmpfs", 0)
		w.Write(filepath.Join(disk.Point, "canary"), "alive")
		w.Mount("in", filepath.Join(disk.Point, "in"), "tmpfs", 0)
	}
	planned = append(planned, planned[0]+"/disk", planned[0]+"/disk/in", planned[1]+"/disk", planned[1]+"/disk/in")
	want := w.Table(os.Getpid())
	for _, point := range planned {
		on := w.Mounts(point)
		if len(on) != 1 {
			t.Fatalf("%s: %+v", point, on)
		}
		delete(want, on[0].ID)
	}
	steps, err := w.runner().Plan(t.Context(), w.inspect())
	if err != nil || !strings.Contains(steps[0].Description, "after "+planned[0]+" was made private") {
		t.Errorf("plan: %v, %+v", err, steps)
	}
	outcome := w.release()
	if len(outcome.Pods) != 1 || outcome.Pods[0].Result != Released {
		t.Error(describe(outcome))
	}
	if left := w.left(uid); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if diff := cmp.Diff(want, w.Table(os.Getpid())); diff != "" {
		t.Errorf("the mount table minus what was planned: %s", diff)
	}
	for _, dir := range []string{data, local} {
		if got, err := os.ReadFile(filepath.Join(dir, "disk/canary")); err != nil || string(got) != "alive" {
			t.Errorf("canary: %q, %v", got, err)
		}
	}
}

// The dead pod was a backup with /var/lib and subPath kubelet: below its bind appear the volumes of all living pods.
func TestReleaseKeepsVolumesOfLivingPods(t *testing.T) {
	w := newWorld(t)
	uid := mutatetest.UID(t)
	bind := w.PodDir(uid, "volume-subpaths/lib/backup/0")
	w.Mount(w.Host.Paths.KubeletRoot, bind, "", unix.MS_BIND)
	w.Mount("token", w.PodDir(uid, "volumes/kubernetes.io~projected/token"), "tmpfs", 0)
	for _, volume := range []string{"volumes/kubernetes.io~secret/s", "volumes/kubernetes.io~csi/pvc/mount"} {
		m := w.Mount("living", w.PodDir(w.living, volume), "tmpfs", 0)
		w.Write(filepath.Join(m.Point, "canary"), "alive")
		if copies := w.Mounts(filepath.Join(bind, "pods", w.living, volume)); len(copies) != 1 {
			t.Fatalf("no copy of %s: the root is not shared", m.Point)
		}
	}
	want := w.Table(os.Getpid())
	text := describe(w.release())
	if !strings.Contains(text, "of pod "+w.living+" lies below it") {
		t.Errorf("no reason names the living pod: %s", text)
	}
	now := w.Table(os.Getpid())
	for id, line := range want {
		own := strings.Contains(line, "/"+uid+"/") && !strings.Contains(line, w.living) &&
			strings.Contains(line, "token")
		if now[id] == "" && !own {
			t.Errorf("gone: %s\n%s", line, text)
		}
	}
	if on := w.Mounts(bind); len(on) != 1 {
		t.Errorf("the bind: %+v", on)
	}
}
