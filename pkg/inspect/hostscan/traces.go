package hostscan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"path"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// Traces is a digest of the signs that pods came, went or left objects: the entries of kubelet's directory of pods, the
// pods' cgroups in each hierarchy, CNI's cache and the directories of network namespaces, all mounts, the network
// devices, and the processes of kubelet and the runtime. It costs some milliseconds, a pass a hundred.
type Traces [16]byte

// ReadTraces reads the traces of pods on a host. An error means that a pass is needed.
func ReadTraces(ctx context.Context, h *host.Host) (Traces, error) {
	var none, sum Traces
	scan := New(ctx, h, Deadline{})
	scan.Mounts = func() ([]mount.Mount, error) { return mount.Recent(scan.Host) }
	mounts, err := scan.Mounts()
	if err != nil {
		return none, err
	}
	private, err := scan.KubeletMounts()
	if err != nil {
		return none, err
	}
	digest := fnv.New128a()
	for _, m := range append(mounts, private...) {
		fmt.Fprintf(digest, "%d %q\n", m.ID, m.Point)
	}
	for _, dir := range traceDirs(scan, mounts) {
		if err := ctx.Err(); err != nil {
			return none, fmt.Errorf("traces of pods: %w", err)
		}
		entries, _, err := scan.Host.Files.Entries(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return none, err
		}
		fmt.Fprintf(digest, "%d entries of %q\n", len(entries), dir)
		for _, entry := range entries {
			fmt.Fprintf(digest, "%d %q\n", entry.Inode, entry.Name)
		}
	}
	kubelet, kubeletErr := scan.Kubelet()
	runtime, runtimeErr := discover.RuntimeProcess(ctx, scan.Host)
	if err := cmp.Or(kubeletErr, runtimeErr); err != nil {
		return none, err
	}
	for _, process := range []host.Process{kubelet, runtime} {
		fmt.Fprintf(digest, "process %d since %d\n", process.PID, process.StartTime)
	}
	digest.Sum(sum[:0])
	return sum, nil
}

// traceDirs are the directories whose entries come and go with pods.
func traceDirs(scan *Scan, mounts []mount.Mount) []string {
	paths := scan.Host.Paths
	dirs := append([]string{path.Join(paths.KubeletRoot, "pods"), path.Join(paths.CNICacheDir, "results"),
		"/sys/class/net"}, paths.NetnsDirs...)
	for _, hierarchy := range cgroup.CgroupHierarchies(mounts, paths.CgroupMount) {
		for _, dir := range cgroup.PodCgroupDirs(paths) {
			dirs = append(dirs, path.Join(hierarchy.Point, dir))
		}
	}
	return dirs
}
