package repair

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// systemFolders are systemd's folders; tests use their own.
type systemFolders struct{ coreDumps, journals string }

// realFolders are the folders compiled into systemd: systemd-coredump(8), systemd-journald.service(8).
func realFolders() systemFolders {
	return systemFolders{"/var/lib/systemd/coredump", "/var/log/journal"}
}

// maxCoreDumps limits the removals of one run.
const maxCoreDumps = 500

// coreDumps returns the files in systemd-coredump's folder that are old enough, oldest first.
func (v fullDisk) coreDumps(ctx context.Context) (source, error) {
	folder, files, err := v.tools.Mutator.ListFolder(ctx, v.tools.folders.coreDumps)
	if err != nil {
		return source{}, err
	}
	age, now := v.tools.Settings.DiskSpace.CoreDumpAge, v.tools.Host.Clock().Wall
	files = slices.DeleteFunc(files, func(f mutate.FolderFile) bool { return !strings.HasPrefix(f.Name, "core.") })
	observed := v.tools.dumps.observe(v.tools.Host.Clock(), files)
	files = slices.DeleteFunc(files, func(f mutate.FolderFile) bool {
		return now.Sub(f.Modified) < age || observed[dumpKey(f)] < age
	})
	if len(files) == 0 {
		return source{note: fmt.Sprintf("%d, none is older than %s and observed for that long", len(observed), age)}, nil
	}
	if err := v.notMounted(ctx, folder.Path); err != nil {
		return source{}, err
	}
	slices.SortStableFunc(files, func(a, b mutate.FolderFile) int {
		return cmp.Or(cmp.Compare(observed[dumpKey(b)], observed[dumpKey(a)]), a.Modified.Compare(b.Modified))
	})
	files = files[:min(len(files), maxCoreDumps)]
	found := source{freed: sumOf(files)}
	found.free = func(ctx context.Context, enough func(context.Context) (bool, error)) (freed, error) {
		if err := v.notMounted(ctx, folder.Path); err != nil {
			return freed{}, err
		}
		return each(ctx, files, enough, func(ctx context.Context, f mutate.FolderFile) (uint64, error) {
			return f.Bytes, v.tools.Mutator.RemoveFrom(ctx, folder, f)
		})
	}
	return found, nil
}

// notMounted refuses a folder if a part of it is mounted elsewhere: a pod may be reading from it.
func (v fullDisk) notMounted(ctx context.Context, folder string) error {
	at, err := mount.Elsewhere(ctx, v.tools.Host, folder)
	if err != nil {
		return fmt.Errorf("check whether a part of it is mounted elsewhere: %w", err)
	}
	if at != (mount.MountedAt{}) {
		return refuse("a part of %s is mounted on %s in the mount namespace of process %d", folder, at.Point, at.PID)
	}
	return nil
}

func sumOf(files []mutate.FolderFile) (sum freed) {
	for _, f := range files {
		sum.objects, sum.bytes = sum.objects+1, sum.bytes+f.Bytes
	}
	return sum
}

// journal returns the part of this machine's archived journal files that lies above the floor and is needed.
func (v fullDisk) journal(ctx context.Context, need uint64) (source, error) {
	if need == 0 {
		return source{note: "few files, and space is not short"}, nil
	}
	if err := v.tools.Mutator.MayVacuumJournal(); err != nil {
		return source{}, err
	}
	machine, err := v.tools.Host.Files.Text("/etc/machine-id")
	if err != nil || machine == "" || path.Base(machine) != machine {
		return source{}, fmt.Errorf("find the journal of this machine, machine-id %q: %w", machine, err)
	}
	name := path.Join(v.tools.folders.journals, machine)
	folder, archived, active, err := v.journalFiles(ctx, name)
	if err != nil {
		return source{}, err
	}
	floor := v.tools.Settings.DiskSpace.JournalFloorBytes
	keep := max(floor, archived.bytes-min(need, archived.bytes))
	if archived.bytes <= keep {
		return source{note: fmt.Sprintf("archived %s, of which %s stay", sizeText(archived.bytes), sizeText(floor))}, nil
	}
	return source{
		freed: freed{archived.objects, archived.bytes - keep}, note: fmt.Sprintf("down to %s", sizeText(keep)),
		free: func(ctx context.Context, _ func(context.Context) (bool, error)) (freed, error) {
			// Whichever files journalctl counts, this much of the archived ones remains.
			failure := v.tools.Mutator.VacuumJournal(ctx, folder, keep+active.bytes)
			_, left, _, err := v.journalFiles(ctx, name)
			if err != nil {
				return freed{}, cmp.Or(failure, err)
			}
			return freed{max(0, archived.objects-left.objects), archived.bytes - min(left.bytes, archived.bytes)}, failure
		},
	}, nil
}

// journalFiles counts the files of a journal. Archived ones are those that journald has closed,
// system@ID-SEQ-TIME.journal, and those that a crash left; all others are active.
func (v fullDisk) journalFiles(ctx context.Context, name string) (folder mutate.Folder, archived, active freed, err error) {
	folder, files, err := v.tools.Mutator.ListFolder(ctx, name)
	for _, f := range files {
		sum := &active
		if strings.HasSuffix(f.Name, ".journal~") || strings.HasSuffix(f.Name, ".journal") && strings.Contains(f.Name, "@") {
			sum = &archived
		}
		sum.objects, sum.bytes = sum.objects+1, sum.bytes+f.Bytes
	}
	return folder, archived, active, err
}

// quarantine returns the objects that the hourly sweep would remove.
func (v fullDisk) quarantine(ctx context.Context) (source, error) {
	o := release.Options{Settings: v.tools.Releases, Host: v.tools.Host, Mutator: v.tools.Mutator, Log: v.tools.Log,
		StateDir: v.tools.StateDir}
	expired := func(ctx context.Context) (sum freed, err error) {
		all, err := release.ExpiredQuarantine(ctx, o)
		for _, kept := range all {
			sum.objects, sum.bytes = sum.objects+1, sum.bytes+kept.Bytes
		}
		return sum, err
	}
	now, err := expired(ctx)
	return source{
		freed: now, note: "no entry has expired, or releases are off",
		free: func(ctx context.Context, _ func(context.Context) (bool, error)) (freed, error) {
			failure := release.SweepQuarantine(ctx, o)
			left, err := expired(ctx)
			if err != nil {
				return freed{}, cmp.Or(failure, err)
			}
			return freed{max(0, now.objects-left.objects), now.bytes - min(left.bytes, now.bytes)}, failure
		},
	}, err
}
