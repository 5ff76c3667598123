package repair

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/atomicfile"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// dumpWatch remembers for how long each core dump has been observed unchanged. The file's own time is the wall clock's
// when it was written: after a jump of that clock a dump of this minute looks old. Only time since boot counts here; of
// the time between two boots nothing is known, so it counts as none.
type dumpWatch struct {
	mu   sync.Mutex // guards what follows
	last finding.Timestamp
	ages map[string]time.Duration // by dumpKey, at last
}

// watchDumpsEvery is the interval of observations while core dumps may be removed.
const watchDumpsEvery = time.Hour

// dumpKey identifies a core dump and its state. Another file with its name, and a changed one, is a young one.
func dumpKey(f mutate.FolderFile) string {
	return fmt.Sprintf("%s %s:%d %d", f.Name, f.File.Device, f.File.Inode, f.Modified.UnixNano())
}

// observe notes the files that exist now, and returns the least time for which each has been unchanged.
func (w *dumpWatch) observe(now finding.Timestamp, files []mutate.FolderFile) map[string]time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	passed := max(0, now.Since(w.last))
	ages := make(map[string]time.Duration, len(files))
	for _, f := range files {
		ages[dumpKey(f)] = 0
		if age, known := w.ages[dumpKey(f)]; known {
			ages[dumpKey(f)] = age + passed
		}
	}
	w.last, w.ages = now, ages
	return maps.Clone(ages)
}

// savedDumps is the content of the file that keeps a dumpWatch over restarts of the agent and of the node.
type savedDumps struct {
	Last finding.Timestamp        `json:"last"`
	Ages map[string]time.Duration `json:"ages"` // nanoseconds
}

// dumpsFile is the name of that file in the state directory.
const dumpsFile = "core-dumps.json"

// load reads the file. Without a valid one all core dumps are young.
func (w *dumpWatch) load(stateDir string) {
	data, err := host.Files{}.Read(filepath.Join(stateDir, dumpsFile))
	var saved savedDumps
	if err != nil || json.Unmarshal(data, &saved) != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.ages = saved.Last, saved.Ages
}

func (w *dumpWatch) save(stateDir string) error {
	w.mu.Lock()
	data, err := json.Marshal(savedDumps{w.last, w.ages})
	w.mu.Unlock()
	if err == nil {
		err = os.MkdirAll(stateDir, 0o700)
	}
	if err == nil {
		err = atomicfile.WriteData(filepath.Join(stateDir, dumpsFile), data)
	}
	if err != nil {
		return fmt.Errorf("save the ages of core dumps: %w", err)
	}
	return nil
}

// watchDumps observes the core dumps, if they may be removed at all.
func (r *Runner) watchDumps(ctx context.Context) {
	if s := r.options.Settings; !s.DiskSpace.CoreDumps || s.ModeOf(freeDiskSpace()) == release.Off {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, examineLimit)
	defer cancel()
	_, files, err := r.tools.Mutator.ListFolder(ctx, r.tools.folders.coreDumps)
	if err == nil {
		r.tools.dumps.observe(r.options.Host.Clock(), files)
		err = r.tools.dumps.save(r.options.StateDir)
	}
	if err != nil { // they stay as old as they were
		r.options.Log.Debug("observe core dumps", "err", err)
	}
}
