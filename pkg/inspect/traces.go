package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"path"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// restingPasses is how many passes in a row are left out while nothing is suspicious and no pod's traces change. What
// only a whole pass can notice, such as a pod that is gone without kubelet having touched anything of it, waits so long.
const restingPasses = 4

// stillPasses is the same while a watch of the node's pods shows that none has changed either: then a pod that is gone
// without a trace on the node is noticed as well, and a whole pass, which asks kubelet, comes once in 40 minutes.
const stillPasses = 40

// traces is a digest of what shows that pods came, went or left something behind: the entries of kubelet's directory of
// pods, of the pods' cgroups in each hierarchy, of CNI's cache and of the directories of network namespaces, all mounts,
// the network devices, and which processes kubelet and the runtime are. It costs some milliseconds, a pass a hundred.
type traces [16]byte

// rest decides which passes may be left out.
type rest struct {
	before traces            // what was there before the last pass
	known  bool              // before could be read
	began  finding.Timestamp // the last pass
	quiet  bool              // it found nothing that has to be looked at again
	passes int               // that were left out since then
}

// Rests reports whether the next pass may be left out: the one before found that everything is a living pod's or
// foreign, and no trace of a pod has changed since it began. It must not run concurrently with Pass.
func (i *Inspector) Rests(ctx context.Context) bool {
	now, err := readTraces(ctx, i.host)
	began := i.host.Clock()
	if r := &i.rest; r.quiet && err == nil && now == r.before && (r.passes < restingPasses || i.still(began)) {
		r.passes++
		return true
	}
	i.rest = rest{before: now, known: err == nil, began: began}
	return false
}

// still reports whether no pod of the node has changed since the last pass.
func (i *Inspector) still(now finding.Timestamp) bool {
	still := i.host.Cluster.Still
	return still != nil && i.rest.passes < stillPasses && still(now.Since(i.rest.began))
}

// after takes the result of a pass over objects of the given kinds.
func (r *rest) after(report Report, next History, kinds []Kind) {
	r.quiet, r.passes = r.known && len(kinds) == 0 && quiet(report, next), 0
}

// quiet reports whether nothing of a pass has to be looked at again: every object is a living pod's or foreign, or is
// only reported, and proven or waiting for something that lasts; everything could be read, and nothing else has to be
// remembered.
func quiet(report Report, next History) bool {
	// The task of a container that containerd has and CRI lost stays a candidate as long as that container.
	const settledAfter = time.Hour
	settled := 0
	for _, o := range report.Suspicious().Objects {
		waits := o.Verdict == Candidate && report.At.Since(o.FirstSeen) > settledAfter
		if o.Kind.ReportOnly() == "" || o.Verdict != Leftover && o.Verdict != Unowned && !waits {
			return false
		}
		settled++
	}
	return len(next) == settled && len(report.Errors) == 0
}

// readTraces reads the traces of pods on a host. An error means that a pass is needed.
func readTraces(ctx context.Context, h *host.Host) (traces, error) {
	var none, sum traces
	scan := NewScan(ctx, h)
	mounts, err := scan.mounts()
	if err != nil {
		return none, err
	}
	private, err := kubeletMounts(scan)
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
	kubelet, kubeletErr := scan.kubelet()
	runtime, runtimeErr := ask(ctx, "runtime", scan.Host.Runtime.Process)
	if err := cmp.Or(kubeletErr, runtimeErr); err != nil {
		return none, err
	}
	for _, process := range []host.Process{kubelet, runtime} {
		fmt.Fprintf(digest, "process %d since %d\n", process.PID, process.StartTime)
	}
	digest.Sum(sum[:0])
	return sum, nil
}

// traceDirs are the directories of which the entries come and go with pods.
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
