package mutate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// PodLogs is the identity of kubelet's directory for the container logs of a pod, <namespace>_<name>_<UID>.
type PodLogs struct {
	Dir, UID string
	File     FileID
}

// logFile matches the names of a container's log, rotated ones included: 0.log, 0.log.20260102-150405, ….gz, ….tmp
// (pkg/kubelet/logs/container_log_manager.go).
var logFile = regexp.MustCompile(`^[0-9]{1,10}\.log(\.[0-9]{8}-[0-9]{6}(\.gz)?(\.tmp)?)?$`)

// RemovePodLogs removes the logs of one pod: plain files in its containers' directories, with the names that the
// runtime and kubelet give them, if no process has one open, and then the directories with rmdir. If it contains
// anything else, or a part of it is mounted elsewhere or a mount point, it stays unchanged. It is no error if it is
// gone.
func (d *Mutator) RemovePodLogs(ctx context.Context, l PodLogs) error {
	base, name := path.Dir(l.Dir), path.Base(l.Dir)
	if d.host.Paths.PodLogs == "" || base != path.Clean(d.host.Paths.PodLogs) || !host.IsPodUID(l.UID) ||
		!strings.HasSuffix(name, "_"+l.UID) {
		return refuse("%s is not the directory of the logs of pod %q", l.Dir, l.UID)
	}
	a, err := d.do(ctx, child.Request{Op: child.OpTree, Base: base, UID: name})
	if err != nil || len(a.Entries) == 0 {
		return err
	}
	if a.Entries[0].File != l.File {
		return changed("directory %s is inode %d instead of %d", l.Dir, a.Entries[0].File.Inode, l.File.Inode)
	}
	for _, entry := range a.Entries[1:] {
		ofContainer := !strings.Contains(entry.Path, "/") && entry.Type == Directory && !entry.Mount
		isLog := strings.Count(entry.Path, "/") == 1 && entry.Type == Regular && entry.Links == 1 && !entry.Mount &&
			logFile.MatchString(path.Base(entry.Path))
		if !ofContainer && !isLog {
			return refuse("%s is not a container's log", path.Join(l.Dir, entry.Path))
		}
	}
	at, err := mount.MountedFrom(ctx, d.host, l.Dir)
	if err != nil {
		return fmt.Errorf("whether %s is mounted elsewhere: %w", l.Dir, err)
	}
	if at != (mount.MountedAt{}) {
		return refuse("a part of %s is mounted on %s in the mount namespace of process %d", l.Dir, at.Point, at.PID)
	}
	if pid, err := d.opener(ctx, name); err != nil || pid != 0 {
		return errors.Join(err, openBy(l.Dir, pid))
	}
	for _, entry := range slices.Backward(a.Entries) {
		r := child.Request{Op: child.OpRemoveDir, Base: base, UID: name, Path: entry.Path, File: entry.File}
		if entry.Type == Regular {
			r.Op = child.OpRemoveFile
		}
		if _, err := d.do(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func openBy(dir string, pid int) error {
	if pid == 0 {
		return nil
	}
	return fmt.Errorf("process %d has a file in %s open: %w", pid, dir, ErrBusy)
}

// opener returns a process with an open file below a directory of that name, or 0. The name contains a pod's UID, and
// is the same in every mount namespace in which its parent directory is mounted.
func (d *Mutator) opener(ctx context.Context, name string) (int, error) {
	pids, err := d.host.PIDs()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		file, err := holders.Opens(d.host, pid, func(target string) bool {
			return strings.Contains(target+"/", "/"+name+"/")
		})
		if errors.Is(err, fs.ErrPermission) && (pid == 1 || pid == d.host.Paths.InitPID) {
			continue // some kernels forbid reading the links of init, which opens no logs
		}
		if err != nil {
			return 0, fmt.Errorf("open files of process %d: %w", pid, err)
		}
		if file != "" {
			return pid, nil
		}
	}
	return 0, nil
}
