package mutate_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// scene is one pod's directory on a shared root and its surroundings.
type scene struct {
	*mutatetest.Node
	t                 *testing.T
	dead, living      string
	source, subpath   string // a directory of the host, and the dead pod's bind of it
	otherPID          int
	disk              string // mount point below the source, used later
	volume, elsewhere string
}

// top returns the uppermost mount on a point.
func (s *scene) top(point string) mutate.Mount {
	s.t.Helper()
	on := s.Mounts(point)
	if len(on) == 0 {
		s.t.Fatalf("nothing is mounted on %s", point)
	}
	return on[len(on)-1]
}

// bind makes the dead pod's bind of the source.
func (s *scene) bind() { s.Mount(s.source, s.subpath, "", unix.MS_BIND) }

// later mounts a disk below the source, as an administrator does on a live node.
func (s *scene) later() {
	s.Mount("disk", s.disk, "tmpfs", 0)
	s.Write(filepath.Join(s.disk, "canary"), "alive")
}

func (s *scene) propagation(point string, flag uintptr) {
	s.t.Helper()
	if err := unix.Mount("", point, "", flag, ""); err != nil {
		s.t.Fatalf("propagation of %s: %v", point, err)
	}
}

// An unmount either has no effect outside of the directory of the dead pod, or is refused.
func TestUnmountStaysInPod(t *testing.T) {
	type step struct {
		point  func(s *scene) string
		refuse string // part of the text; empty: it is unmounted
	}
	subpath := func(below string) func(s *scene) string {
		return func(s *scene) string { return filepath.Join(s.subpath, below) }
	}
	volume := func(s *scene) string { return s.volume }
	for name, test := range map[string]struct {
		make  func(s *scene)
		steps []step
		// mount points that go with it
		along func(s *scene) []string
	}{
		"a disk mounted below the source later": {
			make:  func(s *scene) { s.bind(); s.later() },
			steps: []step{{subpath("disk"), ""}, {subpath(""), ""}},
		},
		"a mount in that disk too": {
			make: func(s *scene) {
				s.bind()
				s.later()
				s.Mount("in", filepath.Join(s.disk, "in"), "tmpfs", 0)
			},
			steps: []step{{subpath("disk/in"), ""}, {subpath("disk"), ""}, {subpath(""), ""}},
		},
		"a disk mounted right on the source": {
			make: func(s *scene) {
				s.bind()
				s.Mount("disk", s.source, "tmpfs", 0)
			},
			steps: []step{{subpath(""), "would also take away"}},
		},
		"stacked on a disk below the source": {
			make: func(s *scene) {
				s.bind()
				s.later()
				s.Mount("upper", s.disk, "tmpfs", 0)
			},
			steps: []step{{subpath("disk"), ""}, {subpath("disk"), ""}, {subpath(""), ""}},
		},
		"a backup pod with a bind of kubelet's root": {
			make: func(s *scene) {
				s.source = s.Host.Paths.KubeletRoot
				s.bind()
				s.Mount("secret", s.PodDir(s.living, "volumes/kubernetes.io~secret/s"), "tmpfs", 0)
			},
			steps: []step{
				{func(s *scene) string {
					return filepath.Join(s.subpath, "pods", s.living, "volumes/kubernetes.io~secret/s")
				}, "carries the UID of pod"},
				{subpath(""), "lies below it"},
			},
		},
		"a bind of another pod's volumes": {
			make: func(s *scene) {
				s.source = s.PodDir(s.living, "volumes")
				s.Mkdir(s.source)
				s.bind()
				s.Mount("secret", filepath.Join(s.source, "kubernetes.io~secret/s"), "tmpfs", 0)
			},
			steps: []step{{subpath("kubernetes.io~secret/s"), "carries the UID of pod"},
				{subpath(""), "carries the UID of pod"}},
		},
		"a slave of the host": {
			make:  func(s *scene) { s.bind(); s.propagation(s.subpath, unix.MS_SLAVE); s.later() },
			steps: []step{{subpath("disk"), ""}, {subpath(""), ""}},
		},
		"a slave that has peers": {
			make: func(s *scene) {
				s.Mount(s.source, s.elsewhere, "", unix.MS_BIND)
				s.propagation(s.elsewhere, unix.MS_SLAVE)
				s.propagation(s.elsewhere, unix.MS_SHARED)
				s.Mount(s.elsewhere, s.subpath, "", unix.MS_BIND)
				s.later()
			},
			steps: []step{{subpath("disk"), ""}, {subpath(""), ""}},
		},
		"a host's slave of the pod's bind": {
			make: func(s *scene) {
				s.Mount("v", s.volume, "tmpfs", 0)
				s.Mount(s.volume, s.elsewhere, "", unix.MS_BIND)
				s.propagation(s.elsewhere, unix.MS_SLAVE)
				s.Mount("in", filepath.Join(s.volume, "in"), "tmpfs", 0)
			},
			steps: []step{{func(s *scene) string { return filepath.Join(s.volume, "in") }, ""}, {volume, ""}},
		},
		"stacked on one that the host has a slave of": {
			make: func(s *scene) {
				s.Mount("v", s.volume, "tmpfs", 0)
				s.Mount(s.volume, s.elsewhere, "", unix.MS_BIND)
				s.propagation(s.elsewhere, unix.MS_SLAVE)
				s.Mount("upper", s.volume, "tmpfs", 0)
			},
			steps: []step{{volume, "would also take away"}},
		},
		"stacked in memory": {
			make: func(s *scene) {
				s.Mount("lower", s.volume, "tmpfs", 0)
				s.Mount("upper", s.volume, "tmpfs", 0)
			},
			steps: []step{{volume, ""}, {volume, ""}},
		},
		"a local volume": {
			make: func(s *scene) {
				s.Mount("local", s.elsewhere, "tmpfs", 0)
				s.Mount(s.elsewhere, s.volume, "", unix.MS_BIND)
				s.Mount("in", filepath.Join(s.elsewhere, "in"), "tmpfs", 0)
			},
			steps: []step{{func(s *scene) string { return filepath.Join(s.volume, "in") }, ""}, {volume, ""}},
		},
		"a container's own mount in a volume of the pod, passed on to the host": {
			make: func(s *scene) {
				s.Mount("v", s.volume, "tmpfs", 0)
				s.Mkdir(filepath.Join(s.volume, "in"))
				s.Namespace("unchanged", "mount -t tmpfs in "+filepath.Join(s.volume, "in"))
			},
			steps: []step{{func(s *scene) string { return filepath.Join(s.volume, "in") }, ""}, {volume, ""}},
		},
		"a second namespace with a copy of everything": {
			make: func(s *scene) {
				s.bind()
				s.later()
				s.otherPID = s.Namespace("unchanged", "")
			},
			steps: []step{{subpath("disk"), ""}, {subpath(""), ""}},
		},
		"a second namespace that came before": {
			make: func(s *scene) {
				s.otherPID = s.Namespace("unchanged", "")
				s.bind()
				s.later()
			},
			steps: []step{{subpath("disk"), ""}, {subpath(""), ""}},
		},
		"a container that mounted something else there": {
			make: func(s *scene) {
				s.Mount("v", s.volume, "tmpfs", 0)
				s.otherPID = s.Namespace("slave", "umount "+s.volume+"; mount -t tmpfs own "+s.volume)
			},
			steps: []step{{volume, "mount namespace of process"}},
		},
		"memory of the pod that a living pod sees": {
			make: func(s *scene) {
				s.Mkdir(filepath.Dir(s.volume))
				s.Mount(filepath.Dir(s.volume), s.PodDir(s.living, "volume-subpaths/v/c/0"), "", unix.MS_BIND)
				s.Mount("v", s.volume, "tmpfs", 0)
			},
			steps: []step{{volume, "would also take away"}},
		},
		"kubelet's root is a bind of a directory on a data disk": {
			make: func(s *scene) {
				s.Mount("data", s.elsewhere, "tmpfs", 0)
				root := s.Mkdir(filepath.Join(s.elsewhere, "k/pods"))
				s.Mount(filepath.Dir(root), s.Host.Paths.KubeletRoot, "", unix.MS_BIND)
				s.Mount("v", s.volume, "tmpfs", 0)
			},
			steps: []step{{volume, ""}},
			along: func(s *scene) []string {
				return []string{strings.Replace(s.volume, s.Host.Paths.KubeletRoot, filepath.Join(s.elsewhere, "k"), 1)}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &scene{Node: mutatetest.New(t), t: t, dead: mutatetest.UID(t), living: mutatetest.UID(t)}
			s.Mkdir(s.PodDir(s.living))
			s.source = s.Mkdir(filepath.Join(s.Dir, "data"))
			s.disk, s.elsewhere = filepath.Join(s.source, "disk"), filepath.Join(s.Dir, "elsewhere")
			s.subpath, s.volume = s.PodDir(s.dead, "volume-subpaths/v/app/0"), s.PodDir(s.dead, "volumes/a/v")
			test.make(s)
			want := s.Table(os.Getpid())
			var other map[int]string
			if s.otherPID != 0 {
				other = s.Table(s.otherPID)
			}
			if test.along != nil {
				for _, point := range test.along(s) {
					delete(want, s.top(point).ID)
				}
			}
			for _, step := range test.steps {
				m := s.top(step.point(s))
				err := s.Mutator.Unmount(t.Context(), s.dead, m, mutate.Plain)
				var refusal mutate.Refusal
				switch {
				case step.refuse == "" && err != nil:
					t.Errorf("%s: %v", m.Point, err)
				case step.refuse != "" && (!errors.As(err, &refusal) || !strings.Contains(refusal.Why, step.refuse)):
					t.Errorf("%s: %v, want it refused: %s", m.Point, err, step.refuse)
				case step.refuse == "":
					delete(want, m.ID)
				}
			}
			if diff := cmp.Diff(want, s.Table(os.Getpid())); diff != "" {
				t.Errorf("the mount table minus what was planned: %s", diff)
			}
			// Another namespace may lose only copies of mounts that were in the pod's directory.
			now := map[int]string{}
			if s.otherPID != 0 {
				now = s.Table(s.otherPID)
			}
			for id, line := range other {
				if now[id] != line && !strings.Contains(line, s.PodDir(s.dead)) {
					t.Errorf("another namespace lost %s", line)
				}
			}
		})
	}
}
