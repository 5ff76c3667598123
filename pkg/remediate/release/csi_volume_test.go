package release

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host/volume"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/actions"
)

// While the node or the cluster shows any use of a volume, its note stays.
func TestVolumeNeeded(t *testing.T) {
	const driver, handle = "a.example.com", "disks/vol-1"
	plugins := func(w *world, parts ...string) string {
		return filepath.Join(append([]string{w.Host.Paths.KubeletRoot, "plugins/kubernetes.io/csi"}, parts...)...)
	}
	for name, test := range map[string]struct {
		arrange func(w *world)
		want    string // empty: the note goes
	}{
		"nobody": {func(*world) {}, ""},
		"a globalmount": {func(w *world) {
			w.Mount("tmpfs", plugins(w, driver, volume.HandleSum(handle), "globalmount"), "tmpfs", 0)
		}, "still staged"},
		"a globalmount that is not mounted": {func(w *world) {
			w.Mkdir(plugins(w, driver, volume.HandleSum(handle), "globalmount"))
		}, "still staged"},
		"of a driver in other letters": {func(w *world) {
			w.Mkdir(plugins(w, "A.Example.com", volume.HandleSum(handle)))
		}, "still staged"},
		"of another driver": {func(w *world) {
			w.Mkdir(plugins(w, "b.example.com", volume.HandleSum(handle)))
		}, "still staged"},
		"an old globalmount": {func(w *world) {
			w.Mkdir(plugins(w, "pv/pvc-1/globalmount"))
		}, "still staged"},
		"a device": {func(w *world) {
			w.Write(plugins(w, "volumeDevices/staging/pvc-1"), "")
		}, "still staged"},
		"another volume of the driver": {func(w *world) {
			w.Mount("tmpfs", plugins(w, driver, volume.HandleSum("disks/vol-2"), "globalmount"), "tmpfs", 0)
		}, ""},
		"more among the plugins than can be read": {func(w *world) {
			dir := w.Mkdir(plugins(w, "many"))
			for i := range 20_001 {
				if err := unix.Mkdir(filepath.Join(dir, itoa(i)), 0o700); err != nil {
					w.t.Fatal(err)
				}
			}
		}, "not known"},
		"in use": {func(w *world) {
			w.inUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/" + driver + "^" + handle}
		}, "volumesInUse"},
		"in use, by a driver in other letters": {func(w *world) {
			w.inUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/A.EXAMPLE.COM^" + handle}
		}, "volumesInUse"},
		"attached": {func(w *world) {
			w.attached = []corev1.AttachedVolume{{Name: "kubernetes.io/csi/" + driver + "^" + handle}}
		}, "volumesAttached"},
		"another volume is in use": {func(w *world) {
			w.inUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/" + driver + "^disks/vol-12", "kubernetes.io/csi/" +
				driver + "^vol-1"}
		}, ""},
		"kubelet works on a terminated pod": {func(w *world) {
			w.working[`config="orphan",lifecycle="terminated",static=""`] = 1
		}, "kubelet still works"},
		"kubelet works on a pod of the runtime": {func(w *world) {
			w.working[`config="runtime_only",lifecycle="terminated",static="unknown"`] = 2
		}, "kubelet still works on 2"},
		"completed jobs are desired": {func(w *world) {
			w.working[`config="desired",lifecycle="terminated",static=""`] = 5
		}, ""},
		"kubelet shows no count": {func(w *world) { w.working = nil }, "not known"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			uid, note := w.withNote(driver, handle)
			test.arrange(w)
			if why := w.needed(uid, note); (why == "") != (test.want == "") || !strings.Contains(why, test.want) {
				t.Errorf("%q, want %q", why, test.want)
			}
		})
	}
}

// If one of the last questions fails, that alone keeps the note.
func TestVolumeNeededUnclear(t *testing.T) {
	w := newWorld(t)
	uid, note := w.withNote("a.example.com", "v")
	evidence := w.runner().tools.CSI
	entry := mutate.Entry{Path: "volumes/kubernetes.io~csi/pvc-1/vol_data.json", File: mutatetest.FileID(t, note)}
	needed := func() string { return evidence.VolumeNeeded(t.Context(), uid, entry) }
	if why := needed(); why != "" {
		t.Fatal(why)
	}
	metric, node, away := w.Host.Kubelet.Metric, w.Host.Cluster.Node, errors.New("away")
	w.Host.Kubelet.Metric = func(context.Context, string) (map[string]float64, error) { return nil, away }
	if why := needed(); !strings.Contains(why, "not known: away") {
		t.Error(why)
	}
	w.Host.Kubelet.Metric = nil
	if why := needed(); !strings.Contains(why, "not configured") {
		t.Error(why)
	}
	w.Host.Kubelet.Metric = metric
	w.Host.Cluster.Node = func(context.Context) (*corev1.Node, error) { return nil, away }
	if why := needed(); !strings.Contains(why, "in use is not known: away") {
		t.Error(why)
	}
	w.Host.Cluster.Node = nil
	if why := needed(); !strings.Contains(why, "not configured") {
		t.Error(why)
	}
	w.Host.Cluster.Node = node
	entry.File.Inode++
	if why := needed(); !strings.Contains(why, "rewritten") {
		t.Error(why)
	}
}

// If one of two volumes of a driver that no longer exists is staged, the whole directory of the pod stays.
func TestOneOfTwoVolumesIsStaged(t *testing.T) {
	w := newWorld(t)
	uid, _ := w.withNote("a.example.com", "v-1")
	w.Write(w.PodDir(uid, "volumes/kubernetes.io~csi/pvc-2/vol_data.json"),
		volumeNoteOf("pvc-2", "v-2", "a.example.com"))
	w.Write(w.PodDir(uid, "etc-hosts"), "hosts")
	w.Mkdir(filepath.Join(w.Host.Paths.KubeletRoot, "plugins/kubernetes.io/csi/a.example.com", volume.HandleSum("v-2"),
		"globalmount"))
	before := mutatetest.Snapshot(t, w.PodDir(uid))
	steps, err := w.runner().Plan(t.Context(), w.inspect())
	if err != nil || len(steps) != 1 || !strings.Contains(steps[0].Blocked, "still staged") {
		t.Errorf("plan: %v, %+v", err, steps)
	}
	if text := describe(w.release()); !strings.Contains(text,
		"volume v-2 of CSI driver a.example.com is still staged") {
		t.Error(text)
	}
	unchanged(t, "the pod's directory", before, mutatetest.Snapshot(t, w.PodDir(uid)))
}

// Whatever a pod puts in the place of kubelet's note, the release soon ends with a refusal and frees the lock.
func TestForeignVolumeNotes(t *testing.T) {
	for name, make := range map[string]func(name string) error{
		"a pipe": func(name string) error { return unix.Mkfifo(name, 0o600) },
		// zero
		"a device": func(name string) error { return unix.Mknod(name, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) },
		"a socket": func(name string) error { return unix.Mknod(name, unix.S_IFSOCK|0o600, 0) },
		"a link":   func(name string) error { return os.Symlink("/dev/zero", name) },
		"a link to a pipe": func(name string) error {
			if err := unix.Mkfifo(name+".pipe", 0o600); err != nil {
				return err
			}
			return os.Symlink(name+".pipe", name)
		},
		"a directory": func(name string) error { return os.Mkdir(name, 0o700) },
		"a hole": func(name string) error {
			file, err := os.Create(name)
			if err != nil {
				return err
			}
			defer file.Close()
			return file.Truncate(1 << 40)
		},
		"of a user": func(name string) error {
			return errors.Join(os.WriteFile(name, []byte(volumeNoteOf("pvc-1", "v", "a.example.com")), 0o600),
				os.Chown(name, 1000, 0))
		},
		"anybody's to write": func(name string) error {
			return errors.Join(os.WriteFile(name, []byte(volumeNoteOf("pvc-1", "v", "a.example.com")), 0o600),
				os.Chmod(name, 0o606))
		},
		"with a second name": func(name string) error {
			return errors.Join(os.WriteFile(name, []byte(volumeNoteOf("pvc-1", "v", "a.example.com")), 0o600),
				os.Link(name, name+".2"))
		},
		"nothing": func(string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			uid := mutatetest.UID(t)
			dir := w.Mkdir(w.PodDir(uid, "volumes/kubernetes.io~csi/pvc-1"))
			if err := make(filepath.Join(dir, "vol_data.json")); err != nil {
				t.Fatal(err)
			}
			m := w.Mount("tmpfs", filepath.Join(dir, "mount"), "tmpfs", 0)
			begin := time.Now()
			steps, err := w.runner().Plan(t.Context(), w.inspect())
			if err != nil || !strings.Contains(steps[0].Blocked, "not known") {
				t.Errorf("plan: %v, %+v", err, steps)
			}
			text := describe(w.release())
			if len(w.Mounts(m.Point)) != 1 || !strings.Contains(text,
				"the CSI driver of the volume is not known") {
				t.Error(text)
			}
			if took := time.Since(begin); took > time.Minute {
				t.Errorf("took %s", took)
			}
			lock, err := mutate.Lock(w.settings.Lock)
			if err == nil {
				err = lock.Unlock()
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestClearanceOfAnotherDirectory(t *testing.T) {
	w := newWorld(t)
	uid, other := mutatetest.UID(t), mutatetest.UID(t)
	w.Write(w.PodDir(uid, "etc-hosts"), "hosts")
	w.Write(w.PodDir(other, "etc-hosts"), "hosts")
	before := mutatetest.Snapshot(t, w.Host.Paths.KubeletRoot)
	id := mutatetest.FileID(t, w.PodDir(uid))
	assessment := func(uid, name string, id mutate.FileID) object.Assessment {
		return object.Assessment{Object: object.Object{
			Kind: object.PodDirectory, ID: name, Pod: object.Pod{UID: uid},
			Identity: object.Identity{File: object.FileID{Device: id.Device, Inode: id.Inode}},
		}}
	}
	tools := w.runner().tools
	action, _ := actions.All().On(object.PodDirectory)
	if err := action.Do(t.Context(), tools,
		assessment(uid, w.PodDir(uid), mutatetest.FileID(t, w.PodDir(other)))); !errors.Is(err, mutate.ErrChanged) {
		t.Errorf("another inode: %v", err)
	}
	var refusal mutate.Refusal
	// The inode is right, the name is not: the directory's owner is unknown.
	for _, o := range []object.Assessment{assessment(uid, w.PodDir(other), id), assessment("", w.PodDir(uid), id),
		assessment("", "", id)} {
		if err := action.Do(t.Context(), tools, o); !errors.As(err, &refusal) {
			t.Errorf("%s of %q: %v", o.ID, o.Pod.UID, err)
		}
	}
	unchanged(t, "the directories", before, mutatetest.Snapshot(t, w.Host.Paths.KubeletRoot))
}
