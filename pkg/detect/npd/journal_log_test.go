package npd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/program"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// One child follows the journal for all monitors and continues at its last position, and a monitor takes only entries
// of its own source.
func TestJournal(t *testing.T) {
	files := []File{mustDecode(t, "/etc/npd/a.json", journalMonitor),
		mustDecode(t, "/etc/npd/b.json", strings.ReplaceAll(journalMonitor, "systemd", "dockerd"))}
	bubble(t, "journal", func(t *testing.T, h *host.Host, _ *kmsg) {
		m := &memoryStore{}
		var commands []string
		var each func([]byte)
		end := make(chan error)
		d := Deps{Host: h, Memory: m, Follow: func(ctx context.Context, c program.Command, lines program.Lines) error {
			commands, each = append(commands, strings.Join(append([]string{c.Path}, c.Args...), " ")), lines.Each
			select {
			case <-ctx.Done():
				return nil
			case err := <-end:
				return err
			}
		}}
		entry := func(cursor, identifier, message string) {
			each([]byte(fmt.Sprintf(
				`{"__CURSOR": %q, "__REALTIME_TIMESTAMP": "%d", "SYSLOG_IDENTIFIER": %q, "MESSAGE": %s}`, cursor,
				time.Now().UnixMicro(), identifier, message)))
		}
		w := run(t, files, DefaultSettings(), d, nil, nil)
		w.expect(t)
		time.Sleep(time.Second)
		w.expect(t)
		if s := w.status("npd-a"); s != finding.StatusHealthy {
			t.Errorf("it is %s", s)
		}
		entry("c1", "systemd", `"Started kubelet.service - x."`)
		entry("c2", "dockerd", `"Started kubelet.service"`)
		entry("c3", "someone", `"Started kubelet.service"`)
		entry("c4", "systemd",
			`[83,116,97,114,116,101,100,32,107,117,98,101,108,101,116,46,115,101,114,118,105,99,101,255]`)
		each([]byte(`{"__REALTIME_TIMESTAMP": "x"}`))
		each([]byte(`{`))
		entry("c5", "systemd", `["Started kubelet.service twice", "x"]`)
		w.expect(t, "raised KubeletStart Started kubelet.service - x.", "raised KubeletStart Started kubelet.service",
			"raised KubeletStart Started kubelet.service�", "raised KubeletStart Started kubelet.service twice")
		end <- errors.New("journalctl ended")
		w.expect(t, "raised SourceLost the agent receives no events of npd-journal: journalctl ended; faults are "+
			"found at the checks' intervals only")
		if c := w.tracker.State()["npd-a"]; c.Err == "" {
			t.Error("the check claims to know while nobody reads")
		}
		time.Sleep(15 * time.Second)
		w.expect(t, "cleared SourceLost the agent receives no events of npd-journal: journalctl ended; faults are "+
			"found at the checks' intervals only")
		w.stop()
		w = run(t, files, DefaultSettings(), d, nil, w.tracker.State())
		w.stop()
		options := "/usr/bin/journalctl --output=json --output-fields=MESSAGE,SYSLOG_IDENTIFIER --all --no-pager " +
			"--quiet --follow --no-tail "
		want := []string{
			options + sinceArg(time.Unix(946684800-300, 0)) + " SYSLOG_IDENTIFIER=dockerd SYSLOG_IDENTIFIER=systemd",
			options + "--after-cursor=c5 SYSLOG_IDENTIFIER=dockerd SYSLOG_IDENTIFIER=systemd",
			options + "--after-cursor=c5 SYSLOG_IDENTIFIER=dockerd SYSLOG_IDENTIFIER=systemd",
		}
		if got := strings.Join(commands, "\n"); got != strings.Join(want, "\n") {
			t.Errorf("got:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
		}
	})
}

func FuzzJournalEntry(f *testing.F) {
	f.Add(
		[]byte(
			`{"__CURSOR": "c", "__REALTIME_TIMESTAMP": "1700000000000000", "SYSLOG_IDENTIFIER": "a", "MESSAGE": [1, 2, 255]}`))
	f.Add([]byte(`{"__REALTIME_TIMESTAMP": ["1", "2"], "MESSAGE": [["a"], "b"], "SYSLOG_IDENTIFIER": null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, at, err := parseEntry(data)
		if err == nil && at.IsZero() {
			t.Errorf("%+v", e)
		}
	})
}
