package mutatetest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	hostnetlink "github.com/nodeagent/nodeagent/internal/host/netlink"
)

// Census holds all existing objects, by name, with their identity and content.
type Census map[string]string

// Census lists everything that a release may change on a machine: the whole mount table with its propagation, links and
// packet filter rules of the network namespace, the cgroups of the node and their processes, and all files of the node
// except the agent's own (state, lock). Files below the mount points in hung are not read.
func (n *Node) Census(hung ...string) Census {
	n.t.Helper()
	c := Census{}
	n.countMounts(c)
	n.countLinks(c)
	n.countCgroups(c)
	for _, sub := range []string{"kubelet", "cni", "netns", "bystanders"} {
		countFiles(n.t, c, filepath.Join(n.Dir, sub), hung)
	}
	return c
}

// Network returns the network objects of a node's pods: mounts and files of network namespaces, links, addresses
// assigned by host-local, libcni's cache, and packet filter rules. It omits objects that plugins create with the first
// attachment and never remove: bridges, and host-local's own files.
func (c Census) Network(node string) Census {
	net := Census{}
	for name, text := range c {
		kind, what, _ := strings.Cut(name, " ")
		base := filepath.Base(what)
		switch point, _ := mountPoint(name, text); kind {
		case "mount":
			if !mount.Below(point, node) {
				continue
			}
		case "link":
			if strings.HasPrefix(text, "bridge") {
				continue
			}
		case "file":
			if strings.HasPrefix(text, "d") || base == "lock" || strings.HasPrefix(base, "last_reserved") ||
				!slices.ContainsFunc(
					[]string{"netns", "cni"}, func(dir string) bool {
						return mount.Below(what, filepath.Join(node, dir))
					}) {
				continue
			}
		case "cgroup":
			continue
		}
		net[name] = text
	}
	return net
}

// countMounts reads mountinfo itself, so that the comparison does not depend on the agent's parser.
func (n *Node) countMounts(c Census) {
	n.t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		n.t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		id, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		c["mount "+id] = rest
	}
}

func (n *Node) countLinks(c Census) {
	n.t.Helper()
	links, err := hostnetlink.WholeDump(netlink.LinkList)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, link := range links {
		a := link.Attrs()
		c[fmt.Sprintf("link %d", a.Index)] = fmt.Sprint(link.Type(), a.Name, a.ParentIndex, a.MasterIndex, a.NetNsID,
			a.HardwareAddr)
	}
	for _, tool := range []string{"iptables-save", "ip6tables-save"} {
		rules, err := exec.Command(tool).Output()
		if err != nil {
			continue // without it no plugin creates rules
		}
		for line := range strings.Lines(string(rules)) {
			// its counters follow; the kernel's chains have a policy
			chain, _, madePod := strings.Cut(line, " - [")
			if madePod || strings.HasPrefix(line, "-A ") {
				c[tool+" "+strings.TrimSpace(chain)] = ""
			}
		}
	}
}

// countCgroups lists the cgroups below the node's root in each hierarchy.
func (n *Node) countCgroups(c Census) {
	n.t.Helper()
	mounts, err := mount.Table(n.Host)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, hierarchy := range cgroup.CgroupHierarchies(mounts, n.Host.Paths.CgroupMount) {
		top := filepath.Join(hierarchy.Point, n.Host.Paths.CgroupRoot)
		_ = filepath.WalkDir(top, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return nil //nolint:nilerr // not there in this hierarchy, or gone meanwhile
			}
			procs, _ := os.ReadFile(filepath.Join(name, "cgroup.procs"))
			c["cgroup "+name] = fmt.Sprint(FileID(n.t, name).Inode, strings.Fields(string(procs)))
			return nil
		})
	}
}

// countFiles reads a tree with the contents and links; root need not exist.
func countFiles(t testing.TB, c Census, root string, hung []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		for _, point := range hung {
			if name == point {
				return filepath.SkipDir
			}
		}
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			data, err := content(name)
			if errors.Is(err, syscall.EINVAL) { // a mounted namespace
				data, err = "namespace "+fmt.Sprint(FileID(t, name).Inode), nil
			}
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %d %s", info.Size(), data)
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(name)
			text += " -> " + target
		}
		c["file "+name] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// content returns the first MiB of a file: some tests create sparse files of a terabyte.
func content(name string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, 1<<20))
	return string(data), err
}

// Missing returns the objects of c that are missing or different in after. New objects do not count. A mount outside
// the node's directory, which other processes may change, counts only if it is gone while its mount point still exists:
// if a mount point is removed in another mount namespace, the kernel unmounts it in all of them.
func (c Census) Missing(after Census, node string) []string {
	var missing []string
	for name, was := range c {
		now, ok := after[name]
		point, isMount := mountPoint(name, was)
		outside := isMount && !mount.Below(point, node)
		switch {
		case ok && (now == was || outside):
		case ok:
			missing = append(missing, fmt.Sprintf("%s: was %s, is %s", name, was, now))
		case outside && isGone(point):
		default:
			missing = append(missing, name+": gone: "+was)
		}
	}
	return missing
}

// mountPoint returns the mount point of an entry of the census, if it is a mount: "parent major:minor root point ...".
func mountPoint(name, text string) (string, bool) {
	fields := strings.Fields(text)
	if !strings.HasPrefix(name, "mount ") || len(fields) < 4 {
		return "", false
	}
	return fields[3], true
}

func isGone(name string) bool {
	_, err := os.Lstat(name)
	return os.IsNotExist(err)
}
