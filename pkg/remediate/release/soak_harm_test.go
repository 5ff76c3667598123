package release

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/actions"
)

// The census of TestReleaseSoak shows every object of a living pod that a release wrongly removes, and every leftover.
func TestSoakNoticesHarm(t *testing.T) {
	t.Parallel()
	if _, inside := mutatetest.Parts(t, 1); !inside {
		return
	}
	s := newSoak(t, soakCgroups(1))
	if err := unix.Mount("tmpfs", "/mnt", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	bridge := s.neighbour.attached.Network
	ip := func(args ...string) error { return run("/sbin/ip", args...) }
	for _, test := range []struct {
		name, notices string
		harm          func() error
	}{
		{"a byte", "changed: file " + s.neighbour.data, func() error {
			return os.WriteFile(filepath.Join(s.neighbour.data, "sub/canary"), []byte("alivE"), 0o600)
		}},
		{"the mode of a file", "changed: file " + s.PodDir(s.living), func() error {
			return os.Chmod(s.PodDir(s.living, "etc-hosts"), 0o600)
		}},
		{"one of two mounts on one point", "lost: mount ", func() error {
			return unix.Unmount(s.PodDir(s.living, "volumes/kubernetes.io~secret/stacked"), 0)
		}},
		{"a mount of the machine", "lost: mount ", func() error { return unix.Unmount("/mnt", 0) }},
		{"a rule", "lost: iptables-save ", func() error {
			return run("/sbin/iptables", append([]string{"-t", "nat"}, s.rule()...)...)
		}},
		{"a lease of an address", "lost: file " + s.Host.Paths.CNINetworksDir, func() error {
			leases, _ := filepath.Glob(filepath.Join(s.Host.Paths.CNINetworksDir, bridge, "10.*"))
			return os.Remove(leases[0])
		}},
		{"a route", "lost: route ", func() error { return ip("route", "flush", "dev", bridge) }},
		{"an address", "lost: address ", func() error { return ip("address", "flush", "dev", bridge, "scope", "global") }},
		{"a link", "lost: link ", func() error { return ip("link", "delete", bridge) }},
		{"a network namespace", "lost: mount ", func() error {
			return unix.Unmount(s.neighbour.netns, unix.MNT_DETACH)
		}},
		{"a process", "lost: process ", func() error {
			pid := 0
			_, err := fmt.Sscan(s.processes(), &pid)
			if err == nil {
				err = unix.Kill(pid, unix.SIGKILL)
			}
			return errors.Join(err, actions.Poll(t.Context(), time.Minute, func() (bool, error) { return s.processes() == "", nil }))
		}},
		{"a cgroup", "lost: cgroup ", func() error { return os.Remove(s.cgroup()) }},
		{"a mount that stays", "new: mount ", func() error {
			return unix.Mount("tmpfs", s.Mkdir(filepath.Join(s.Dir, "forgotten")), "tmpfs", 0, "")
		}},
		{"a process that stays", "new: process ", func() error {
			s.Shell("", nil, "echo ready; exec sleep 100000")
			return nil
		}},
		{"a link that stays", "new: link ", func() error { return ip("link", "add", "forgotten", "type", "veth") }},
	} {
		before := s.whole()
		if err := test.harm(); err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if lines := strings.Join(before.Differences(s.whole()), "\n"); !strings.Contains("\n"+lines, "\n"+test.notices) {
			t.Errorf("%s: not noticed:\n%s", test.name, lines)
		}
	}
}

func run(program string, args ...string) error {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
	}
	return nil
}

// rule returns the arguments that delete the first rule of the living pod's port.
func (s *soak) rule() []string {
	for name := range s.before {
		if rule, ok := strings.CutPrefix(name, "iptables-save -A "); ok && strings.Contains(rule, "--to-destination 10.203.") {
			return append([]string{"-D"}, strings.Fields(rule)...)
		}
	}
	s.t.Fatal("the living pod has no rule")
	return nil
}

// cgroup returns the cgroup of the living pod's container.
func (s *soak) cgroup() string {
	names, _ := filepath.Glob(filepath.Join(s.Host.Paths.CgroupMount, s.Host.Paths.CgroupRoot, "kubepods/besteffort/pod"+
		s.living, "*"))
	for _, name := range names {
		if stat, err := os.Stat(name); err == nil && stat.IsDir() {
			return name
		}
	}
	s.t.Fatal("the living pod has no cgroup")
	return ""
}

func (s *soak) processes() string {
	pids, err := os.ReadFile(filepath.Join(s.cgroup(), "cgroup.procs"))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(pids)
}
