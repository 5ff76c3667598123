package npd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/program"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// journalctl reads systemd's journal, whose files have no other documented reader without cgo.
const journalctl = "/usr/bin/journalctl"

// journalProof is how long journalctl must have run to count as working.
const journalProof = 2 * time.Second

// journal follows one journal for all its monitors, with one child.
type journal struct {
	id       string
	path     string // of a folder; empty: the machine's own
	monitors []*logMonitor
	deps     Deps

	mu     sync.Mutex // guards cursor
	cursor string     // of the newest entry
}

// addJournals makes a journal for each folder that monitors read.
func (m *Monitors) addJournals() {
	byPath := map[string]*journal{}
	for _, l := range m.logs {
		if l.file.Log.Plugin != journaldPlugin {
			continue
		}
		where := l.file.Log.LogPath
		j := byPath[where]
		if j == nil {
			j = &journal{id: "npd-journal", path: where, deps: m.deps}
			if len(byPath) > 0 {
				j.id += "-" + strconv.Itoa(len(byPath)+1)
			}
			byPath[where] = j
			j.cursor = m.deps.recall(j.id).Cursor
			m.sources = append(m.sources, detect.Source{Name: detect.WakeSource(j.id), Run: j.run})
			m.states = append(m.states, func(boot string, _ bool) { j.save(boot) })
		}
		j.monitors = append(j.monitors, l)
		m.remember(l, func(s *saved) { j.save(s.Boot) })
	}
}

// save stores how far the journal was read. Monitors save their state at the same time.
func (j *journal) save(boot string) {
	j.mu.Lock()
	s := saved{Boot: boot, Cursor: j.cursor}
	j.mu.Unlock()
	j.deps.state(j.id).Save(s)
}

// run follows the journal until ctx ends.
func (j *journal) run(ctx context.Context, _ func(detect.Change)) error {
	proof := time.AfterFunc(journalProof, func() { j.setReadable(nil) })
	defer proof.Stop()
	now := j.deps.Host.Clock()
	from := j.starts(now)
	malformed := 0
	err := j.deps.Follow(ctx, j.command(slices.MinFunc(from, time.Time.Compare)), program.Lines{
		Each: func(text []byte) {
			if !j.observeRecord(text, from) {
				if malformed++; malformed == 1 {
					j.deps.Log.Warn("journal entry skipped", "source", j.id)
				}
			}
		},
		Skipped: func() { j.deps.Log.Warn("journal entry skipped: too long", "source", j.id) },
	})
	if err != nil && ctx.Err() == nil {
		j.setReadable(err)
	}
	return err
}

// starts returns, by monitor, the wall time before which entries do not count.
func (j *journal) starts(now finding.Timestamp) []time.Time {
	var from []time.Time
	for _, l := range j.monitors {
		up := l.times.start(now.SinceBoot)
		if j.cursor != "" {
			up = l.times.delay // entries from the time without an agent count, too
		}
		from = append(from, now.Wall.Add(up-now.SinceBoot))
	}
	return from
}

func (j *journal) setReadable(err error) {
	for _, l := range j.monitors {
		l.setReadable(err)
	}
}

// command is journalctl for the entries of all monitors from a time on, or after the last read entry.
func (j *journal) command(from time.Time) program.Command {
	j.mu.Lock()
	cursor := j.cursor
	j.mu.Unlock()
	args := []string{"--follow", "--no-tail"}
	if cursor != "" {
		args = append(args, "--after-cursor="+cursor)
	} else {
		args = append(args, sinceArg(from))
	}
	var identifiers []string
	for _, l := range j.monitors {
		identifiers = append(identifiers, l.file.Log.PluginConfig["source"])
	}
	return journalCommand(j.deps.Host, j.path, args, identifiers...)
}

func sinceArg(from time.Time) string {
	return fmt.Sprintf("--since=@%d.%06d", from.Unix(), from.Nanosecond()/1000)
}

// journalCommand returns journalctl for entries of some syslog identifiers. If the folder does not exist, it reads the
// machine's own journal: a node keeps it in /var/log/journal or in /run/log/journal.
func journalCommand(h *host.Host, folder string, args []string, identifiers ...string) program.Command {
	args = append([]string{"--output=json", "--output-fields=MESSAGE,SYSLOG_IDENTIFIER", "--all", "--no-pager",
		"--quiet"}, args...)
	if folder != "" {
		if _, err := h.Files.List(folder); err == nil {
			args = append(args, "--directory="+folder)
		}
	}
	slices.Sort(identifiers)
	for _, name := range slices.Compact(identifiers) { // matches of one field are alternatives
		args = append(args, "SYSLOG_IDENTIFIER="+name)
	}
	return program.Command{Path: journalctl, Args: args}
}

// entry has the used fields of a journal entry.
type entry struct {
	Cursor     string                 `json:"__CURSOR"`
	Realtime   kernellog.JournalField `json:"__REALTIME_TIMESTAMP"` // µs since 1970
	Identifier kernellog.JournalField `json:"SYSLOG_IDENTIFIER"`
	Message    kernellog.JournalField `json:"MESSAGE"`
}

func parseEntry(text []byte) (e entry, at time.Time, err error) {
	if err := json.Unmarshal(text, &e); err != nil {
		return e, at, err
	}
	us, err := strconv.ParseInt(string(e.Realtime), 10, 64)
	if err != nil || us < 0 {
		return e, at, errors.New("no time")
	}
	e.Message = bytes.ToValidUTF8(e.Message, []byte("\uFFFD"))
	return e, time.UnixMicro(us), nil
}

// observeRecord takes an entry and reports whether it could be read.
func (j *journal) observeRecord(text []byte, from []time.Time) bool {
	e, at, err := parseEntry(text)
	if err != nil {
		return false
	}
	now := j.deps.Host.Clock()
	message := strings.TrimSpace(string(e.Message))
	for i, l := range j.monitors {
		if l.file.Log.PluginConfig["source"] == string(e.Identifier) && !at.Before(from[i]) && !l.skips(message) {
			l.observe(line{text: message, at: since(at, now)})
		}
	}
	if e.Cursor != "" {
		j.mu.Lock()
		j.cursor = e.Cursor
		j.mu.Unlock()
	}
	return true
}
