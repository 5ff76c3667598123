package hostscan

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"path"
	"strconv"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// Traces is a digest of the signs that pods came, went or left objects: the entries of kubelet's directory of pods, the
// pods' cgroups in each hierarchy, CNI's cache and the directories of network namespaces, all mounts, the network
// devices, and the processes of kubelet and the runtime. It costs some milliseconds, a pass a hundred.
type Traces [sha256.Size]byte

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
	digest := traceDigest{Hash: sha256.New()}
	for _, m := range append(mounts, private...) {
		digest.add(m.Point, uint64(m.ID))
	}
	for _, dir := range traceDirs(scan, mounts) {
		if err := ctx.Err(); err != nil {
			return none, fmt.Errorf("traces of pods: %w", err)
		}
		entries, _, err := scan.Host.Files.Entries(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return none, err
		}
		digest.add(dir, uint64(len(entries)))
		for _, entry := range entries {
			digest.add(entry.Name, entry.Inode)
		}
	}
	kubelet, kubeletErr := scan.Kubelet()
	runtime, runtimeErr := discover.RuntimeProcess(ctx, scan.Host)
	if err := cmp.Or(kubeletErr, runtimeErr); err != nil {
		return none, err
	}
	for _, process := range []host.Process{kubelet, runtime} {
		digest.add("process", uint64(process.PID), process.StartTime)
	}
	digest.Sum(sum[:0])
	return sum, nil
}

// traceDigest adds up traces: there are thousands of them each minute.
type traceDigest struct {
	hash.Hash

	line []byte // reused
}

// add takes one trace: its name, after its length, and its numbers.
func (d *traceDigest) add(name string, numbers ...uint64) {
	d.line = append(strconv.AppendInt(d.line[:0], int64(len(name)), 10), ' ')
	d.line = append(d.line, name...)
	for _, n := range numbers {
		d.line = strconv.AppendUint(append(d.line, ' '), n, 10)
	}
	d.Write(append(d.line, '\n'))
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
