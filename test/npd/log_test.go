package npd

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/node-problem-detector/pkg/systemlogmonitor"

	"github.com/nodeagent/nodeagent/pkg/detect/npd"
)

func klogless() *slog.Logger { return slog.New(slog.DiscardHandler) }

// asFile makes a log monitor of any plugin read a log file, with the time and the message on each line.
func asFile(t *testing.T, config []byte, log string) []byte {
	t.Helper()
	var c map[string]any
	if err := json.Unmarshal(config, &c); err != nil {
		t.Fatal(err)
	}
	c["plugin"], c["logPath"], c["lookback"] = "filelog", log, "5m"
	c["pluginConfig"] = map[string]string{"timestamp": `^(\S+)`, "message": `^\S+ (.*)`,
		"timestampFormat": time.RFC3339Nano}
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// write appends lines with the time.
func write(t *testing.T, log string, lines []string) {
	t.Helper()
	file, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, line := range lines {
		fmt.Fprintf(file, "%s %s\n", time.Now().Format(time.RFC3339Nano), line)
	}
}

// monitors are log monitors to compare: all shipped ones, and one for corner cases.
func monitors(t *testing.T) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	names, _ := filepath.Glob(filepath.Join(shipped(t), "*.json"))
	for _, name := range names {
		data := read(t, name) // node-problem-detector refuses one of them: it has a comma before a closing bracket
		file, err := npd.Decode(name, data)
		if err == nil && file.Kind == npd.LogMonitor && json.Valid(data) {
			found[filepath.Base(name)] = data
		}
	}
	found["corners"] = []byte(`{"PLUGIN": "kmsg", "BufferSize": 3, "source": "corners",
		"Conditions": [{"Type": "First", "reason": "AllGood", "message": "all is good"}, {"type": "Second", "reason": "Fine", "message": "fine"}],
		"rules": [
			{"type": "permanent", "condition": "First", "reason": "Begun", "pattern": "begin\\nmiddle"},
			{"type": "permanent", "condition": "First", "reason": "Over", "pattern": "middle\\nend", "patternGeneratedMessageSuffix": "see the manual"},
			{"TYPE": "permanent", "condition": "Nowhere", "reason": "Nobody", "pattern": "end"},
			{"type": "temporary", "reason": "Anywhere", "pattern": "odd|even"},
			{"type": "temporary", "reason": "Any", "pattern": "(?i)Panic: .*"},
			{"type": "other", "condition": "Second", "reason": "TypeIsOther", "pattern": "other"}
		]}`)
	return found
}

// logLines are the lines that the monitors read.
func logLines() []string {
	return []string{
		"nothing to see", "Killed process 1012 (heapster) total-vm:327128kB, anon-rss:306328kB, file-rss:11132kB",
		"begin", "middle", "end",
		"task docker:20744 blocked for more than 120 seconds.",
		"task kworker/u8:2:77 blocked for more than 120 seconds.",
		"unregister_netdevice: waiting for eth0 to become free. Usage count = 2",
		"EXT4-fs error (device sda1): ext4_find_entry:1455",
		"XFS (sdb1): Shutting down filesystem", "XFS (sdb1): xfs_do_force_shutdown Shutting down filesystem.",
		"PANIC: at the disco", "odd", "x", "y", "z",
		"EXT4-fs (sda1): Remounting filesystem read-only", "[Hardware Error]: event severity: fatal",
		"{1}[Hardware Error]: event severity: corrected",
		"Buffer I/O error on dev sda, logical block 1",
		"BUG: unable to handle kernel NULL pointer dereference at 00000000", "end", "other", "begin", "middle",
		"Started kubelet.service - Kubernetes kubelet.", "Starting containerd.service...", "middle", "end",
		"returned error: readlink /var/lib/docker/overlay2/x: invalid argument", "Process 12 (bash) crashed in libc",
		"Remounting filesystem read-only",
	}
}

// The same lines make the same events and conditions, with the same texts.
func TestLogMonitors(t *testing.T) {
	for name, config := range monitors(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			log, file := filepath.Join(dir, "log"), filepath.Join(dir, "monitor.json")
			write(t, log, []string{"begins"})
			config := asFile(t, config, log)
			if err := os.WriteFile(file, config, 0o600); err != nil {
				t.Fatal(err)
			}
			log2 := filepath.Join(dir, "log2")
			var got answer
			synctest.Test(t, func(t *testing.T) {
				write(t, log2, []string{"begins"})
				decoded, err := npd.Decode(file, []byte(strings.ReplaceAll(string(config), log, log2)))
				if err != nil {
					t.Fatal(err)
				}
				w := we(t, decoded, npd.DefaultSettings())
				for _, line := range logLines() { // one after the other: events have seconds
					write(t, log2, []string{line})
					time.Sleep(3 * time.Second)
				}
				got = w.answer()
			})
			want := they(t, systemlogmonitor.NewLogMonitorOrDie(file), func() { write(t, log, logLines()) },
				func(a answer) bool { return len(a.Events) >= len(got.Events) })
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("theirs (-), ours (+):\n%s", diff)
			}
		})
	}
}
