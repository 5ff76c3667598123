package discover

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// OtherKubelet is a process of root, in any namespace, that looks like a kubelet and is not ours: of a node in a
// container (kind, k3d, minikube), or of a second cluster on this host.
type OtherKubelet struct {
	host.Process
	// Shares is why it may keep its pods in our kubelet's place; empty if it is known to keep them elsewhere.
	Shares string
}

// OtherKubelets finds the kubelets on this host that are not ours. Every process of root that looks like one counts, so
// that a false one can only make us refuse, and only while it runs; other users' do not count, since such a kubelet
// cannot make cgroups of pods. ours is called after the scan: processes that ended meanwhile are left out.
func OtherKubelets(ctx context.Context, h *host.Host, ours func() (host.Process, error)) ([]OtherKubelet, error) {
	table, err := (&proc.Scan{Root: h.Files.Root}).Run(ctx, "/proc") // of this moment: see ours
	if err != nil {
		return nil, err
	}
	own := host.Process{}
	if ours != nil {
		own, _ = ours() // if ours is not found, each one counts as another
	}
	var others []OtherKubelet
	var mounts []mount.Mount
	for _, stat := range table {
		if stat.PID == own.PID || stat.PPID == own.PID && own.PID > 1 || !runs(stat) ||
			!namedAsKubelet(stat.Comm) {
			continue // a child of ours before exec has the parent's name
		}
		process := processOf(stat)
		root, err := ofRoot(h, process.PID)
		if err != nil && lives(h, process) {
			return nil, fmt.Errorf("whose process %d (%s) is: %w", process.PID, process.Comm, err)
		}
		if !root {
			continue
		}
		// Only now, since a user can make a reader of the arguments block forever: see ProcArgs.
		if process.Args, err = h.ProcArgs(process.PID); err == nil && !runsKubelet(process.Comm, process.Args) {
			continue
		}
		if mounts == nil {
			if mounts, err = mount.Table(h); err != nil {
				return nil, err
			}
		}
		if shares := sharesWith(h, process, mounts); lives(h, process) {
			others = append(others, OtherKubelet{Process: process, Shares: shares})
		}
	}
	return others, nil
}

// namedAsKubelet knows the names of kubelets and of the programs that contain one. The kernel keeps 15 bytes.
func namedAsKubelet(comm string) bool {
	if _, embeds := distro.Embedding(comm); embeds || comm == "hyperkube" {
		return true
	}
	suffix, named := strings.CutPrefix(comm, "kubelet")
	return named && (suffix == "" || strings.ContainsRune("-_.", rune(suffix[0]))) ||
		strings.HasPrefix(comm, "ld-linux")
}

// runsKubelet excludes processes of that name that run no kubelet: another command of a program of many, or a request
// for the version or the flags.
func runsKubelet(comm string, args []string) bool {
	first := args[:min(3, len(args))]
	if comm == "hyperkube" || strings.HasPrefix(comm, "ld-linux") {
		return slices.ContainsFunc(first, func(arg string) bool {
			return strings.HasPrefix(filepath.Base(arg), "kubelet")
		})
	}
	return !slices.ContainsFunc(args, func(arg string) bool {
		return arg == "--version" || arg == "--version=true" || arg == "--help" || arg == "-h"
	})
}

// ofRoot reports whether any of a process's user IDs is root's, as the user namespace of our /proc shows them.
func ofRoot(h *host.Host, pid int) (bool, error) {
	ids, err := statusFields(h, pid, "Uid")
	return slices.Contains(ids, "0"), err
}

// sharesWith returns why a kubelet may keep its pods in the cgroups or below the directory of ours; empty if it does
// not. Its own mount table shows which parts of the host it can reach: a kubelet in a container sees its container's
// cgroup as the root of all, unless it was given the host's.
func sharesWith(h *host.Host, p host.Process, ours []mount.Mount) string {
	its, err := mount.TableOf(h, p.PID)
	if err != nil {
		return fmt.Sprintf("what it has mounted cannot be read: %v", err)
	}
	root, err := cgroupRootOf(h, p)
	if err != nil {
		return err.Error()
	}
	for _, m := range its {
		if m.FSType != "cgroup" && m.FSType != "cgroup2" {
			continue
		}
		for _, dir := range cgroup.KubepodsCgroups((host.Paths{CgroupRoot: path.Join("/", m.Root, root)})) {
			if slices.Contains(cgroup.KubepodsCgroups(h.Paths), dir) {
				return "it may keep its pods' cgroups in " + dir + ", too"
			}
		}
	}
	dir := parseFlags(p.Args)["root-dir"]
	if !filepath.IsAbs(dir) {
		dir = DefaultPaths().KubeletRoot
	}
	theirPlace, known := mount.Located(its, path.Clean(dir))
	if place, ok := mount.Located(ours, path.Clean(h.Paths.KubeletRoot)); ok && known && place == theirPlace {
		return "it has its pods' directories in " + h.Paths.KubeletRoot + ", too"
	}
	return ""
}

// cgroupRootOf returns the cgroup root that a kubelet may have. Its settings are trusted only in our own mount
// namespace, where the file that it names is the one that we see.
func cgroupRootOf(h *host.Host, p host.Process) (string, error) {
	flags := parseFlags(p.Args)
	if root := flags["cgroup-root"]; root != "" {
		return root, nil
	}
	config := flags["config"]
	if _, embeds := distro.Embedding(p.Comm); embeds || flags["config-dir"] != "" {
		return "/", nil // it may be configured elsewhere; most have the default
	}
	if config == "" {
		return "/", nil
	}
	theirs, err := h.Files.Link(proc.File(p.PID, "ns/mnt"))
	own, ownErr := h.Files.Link("/proc/self/ns/mnt")
	if err != nil || ownErr != nil || theirs != own || !filepath.IsAbs(config) {
		return "/", nil //nolint:nilerr // not known: it counts as having the default
	}
	data, err := h.Files.Read(config)
	if err != nil {
		return "", fmt.Errorf("its configuration cannot be read: %w", err)
	}
	var configured KubeletConfiguration
	if err := ParseKubeletConfiguration(&configured, data, filepath.Dir(config)); err != nil {
		return "", fmt.Errorf("its configuration %s: %w", config, err)
	}
	return configured.CgroupRoot, nil
}

// String names a kubelet for people.
func (o OtherKubelet) String() string { return fmt.Sprintf("PID %d (%s)", o.PID, o.Comm) }
