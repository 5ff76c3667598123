package mutate

import (
	"context"
	"path"
	"time"

	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// vacuumLimit bounds a vacuum, which unlinks files of up to 128 MiB each.
const vacuumLimit = time.Minute

// MayVacuumJournal returns why journalctl cannot be run.
func (d *Mutator) MayVacuumJournal() error { return child.RunsJournalctl() }

// VacuumJournal has journalctl remove the oldest archived files of the journal in one folder until those that are left
// take at most keep bytes: together with the files that journald writes to, since systemd 252 or so, and without these
// before. These stay in either case.
func (d *Mutator) VacuumJournal(ctx context.Context, folder Folder, keep uint64) error {
	if keep == 0 || folder.File == (FileID{}) {
		return refuse("no floor, or a folder that was not listed") // for journalctl 0 means no limit
	}
	_, err := d.doIn(ctx, &d.vacuum, child.Request{Op: child.OpVacuum, Base: path.Dir(folder.Path),
		Path: path.Base(folder.Path), File: folder.File, Limit: keep})
	return err
}
