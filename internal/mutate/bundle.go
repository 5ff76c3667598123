package mutate

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	hostcri "github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/internal/host/unmount"
)

// bundles is the directory of bundles below containerd's state, and of their working directories below its root.
const bundles = "io.containerd.runtime.v2.task/" + hostcri.Namespace

// execPID is the file with the process ID of a command that CRI ran in the container.
var execPID = regexp.MustCompile(`^[0-9a-f]{64}\.pid$`)

// bundleLayout is the layout of container bundles (core/runtime/v2: bundle.go, binary.go, shim_manager.go;
// cmd/containerd-shim-runc-v2: process/utils.go, process/init.go, runc/container.go).
func (d *Mutator) bundleLayout() layout {
	l := layout{point: "rootfs", free: d.bundleFree, entry: func(name string) EntryType {
		switch name {
		case "rootfs":
			return Directory
		case "config.json", "options.json", "bootstrap.json", "runtime", "shim-binary-path", "address", "init.pid",
			"shim.pid", "log.json":
			return Regular
		case "log":
			return Pipe
		case "work", "s": // s leads to the sockets of shims, from containerd 2.3 on
			return Symlink
		}
		if execPID.MatchString(name) {
			return Regular
		}
		return ""
	}}
	l.bases = below(d.host.Paths.ContainerdState, bundles)
	if root := d.host.Paths.ContainerdRoot; root != "" {
		l.work = path.Join("/", root, bundles)
	}
	return l
}

// UnmountRootfs unmounts the root filesystem of a container that the runtime does not know, the uppermost mount first,
// without force. ErrBusy: it is in use; the error names the user. It is no error if it is not mounted or the bundle is
// gone.
func (d *Mutator) UnmountRootfs(ctx context.Context, bundle RuntimeDirectory) error {
	return d.unmountRuntime(ctx, bundle, d.bundleLayout())
}

// RemoveBundle removes the bundle of a container that the runtime does not know, and its shim's working directory below
// containerd's root, which must be empty. It removes the files of containerd and the shim by name, and the directories
// with rmdir. It does not follow the link to the working directory. Any other content makes the bundle stay; while its
// root filesystem is mounted, RemoveBundle removes nothing.
func (d *Mutator) RemoveBundle(ctx context.Context, bundle RuntimeDirectory) error {
	return d.removeRuntime(ctx, bundle, d.bundleLayout())
}

// bundleFree makes sure that a bundle is unused: no shim or process of the container or its sandbox lives, no process
// of this mount namespace has anything in it open, and no part of its root filesystem is mounted anywhere else. Mount
// namespaces that got a copy of its mount by propagation lose it with this one; if a copy is left after that, the
// bundle stays.
func (d *Mutator) bundleFree(ctx context.Context, dir, id string) error {
	pids, err := d.host.PIDs()
	if err != nil {
		return err
	}
	sandbox := hostcri.SpecAnnotations(d.host.Files, dir)[hostcri.SandboxIDAnnotation] // whose shim also serves the container
	for _, pid := range pids {
		what, err := d.ofContainer(pid, id, sandbox)
		if err == nil && what != "" {
			err = fmt.Errorf("process %d is %s: %w", pid, what, ErrBusy)
		}
		if err != nil {
			return err
		}
	}
	held, incomplete, err := holders.Holders(ctx, d.host, []holders.Holdable{{Path: dir}})
	switch {
	case err != nil:
		return err
	case incomplete != "":
		return refuse("whether anything uses it is not known: %s", incomplete)
	case len(held[0]) > 0:
		return fmt.Errorf("process %d (%s) uses it (%s): %w", held[0][0].PID, held[0][0].Comm, held[0][0].How, ErrBusy)
	}
	return d.mountedOnlyOn(path.Join(dir, "rootfs"))
}

// ofContainer returns how a living process belongs to a container or its sandbox; empty if it does not.
func (d *Mutator) ofContainer(pid int, id, sandbox string) (string, error) {
	stat, err := d.host.ProcStat(pid)
	if proc.Gone(err) || err == nil && !proc.Alive(stat) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if hostcri.IsShim(stat.Comm) { // it does not read the arguments of others: that may hang
		args, err := d.host.ProcArgs(pid)
		if err != nil {
			return "", d.ignoreEnded(pid, err)
		}
		if of := hostcri.ParseShim(args).ID; of != "" && (of == id || of == sandbox) {
			return "its shim", nil
		}
	}
	cgroups, err := d.host.ProcCgroups(pid)
	if err != nil {
		return "", d.ignoreEnded(pid, err)
	}
	for _, name := range cgroups {
		if strings.Contains(name, id) {
			return "in its cgroup", nil
		}
	}
	return "", nil
}

// mountedOnlyOn makes sure that no mount on the rootfs of a bundle is also mounted under another path in any mount
// namespace. If it is not mounted here, no other namespace may have kept a copy under its path either: the kernel would
// remove that copy, in use or not, with the directory. A container may see the host's root under any path, so for other
// namespaces only the end of the path is compared.
func (d *Mutator) mountedOnlyOn(rootfs string) error {
	here, err := mount.Table(d.host)
	if err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(path.Dir(rootfs))
	if err != nil {
		return err
	}
	var mine []mount.Mount
	for _, m := range here {
		if m.Point == path.Join(real, "rootfs") {
			mine = append(mine, m)
		}
	}
	part := func(m mount.Mount) bool {
		return slices.ContainsFunc(mine, func(r mount.Mount) bool {
			return r.Device() == m.Device() && mount.Below(m.Root, r.Root)
		})
	}
	for _, m := range here {
		if part(m) && !slices.ContainsFunc(mine, func(r mount.Mount) bool { return r.ID == m.ID }) {
			return fmt.Errorf("its root filesystem is also mounted on %s: %w", m.Point, ErrBusy)
		}
	}
	others, err := unmount.OtherNamespaces(d.host.Files, d.host.Mounts)
	if err != nil {
		return err
	}
	end := "/" + path.Join(bundles, path.Base(real), "rootfs")
	for _, namespace := range others {
		for _, m := range namespace.Mounts {
			isCopy := strings.HasSuffix(m.Point, end)
			if isCopy && len(mine) == 0 || !isCopy && part(m) {
				return fmt.Errorf("its root filesystem is mounted on %s in the mount namespace of process %d: %w", m.Point,
					namespace.PID, ErrBusy)
			}
		}
	}
	return nil
}
