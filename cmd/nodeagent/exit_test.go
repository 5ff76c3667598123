package main

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/store"
)

// A command that cannot read what its answer depends on exits with 2, never with 0 (fine) or 1 (a problem was found).
func TestUnreadableIsNoAnswer(t *testing.T) {
	large := bytes.Repeat([]byte("# too large\n"), 1<<17)
	for name, test := range map[string]struct {
		args    string
		prepare func(d *badDay)
		code    int
		text    string
	}{
		"a valid file": {"config validate", func(*badDay) {}, exitFine, "is valid"},
		"a mistake":    {"config validate", func(d *badDay) { write(d.t, d.config, "noSuchKey: 1\n") }, exitProblems, "noSuchKey"},
		"no file":      {"config validate", func(d *badDay) { d.gone(d.config) }, exitCouldNotTell, "no such file"},
		"a directory for a file": {"config validate", func(d *badDay) { d.gone(d.config); d.dirAt(d.config) }, exitCouldNotTell,
			"is a directory"},
		"a file that is too long": {"config validate", func(d *badDay) { write(d.t, d.config, string(large)) }, exitCouldNotTell, "larger than"},
		"nothing was written":     {"retire", func(*badDay) {}, exitFine, ""},
		"state that is a directory": {"retire", func(d *badDay) { d.dirAt(filepath.Join(d.state, "state.db")) }, exitCouldNotTell,
			"read which conditions, taint and ConfigMap this agent wrote"},
		"state that is corrupt": {"retire", func(d *badDay) {
			write(d.t, filepath.Join(d.state, "state.db"), strings.Repeat("not a database ", 4096))
		}, exitCouldNotTell, "was corrupt"},
		"conditions of a Node without an apiserver": {"retire", func(d *badDay) {
			s, err := store.Open(filepath.Join(d.state, "state.db"))
			if err == nil {
				err = errors.Join(s.Bucket("conditions").Put("ReadonlyFilesystem", []byte("{}")), s.Close())
			}
			if err != nil {
				d.t.Fatal(err)
			}
		}, exitCouldNotTell, "no apiserver is configured, but this agent wrote"},
		"no folder for the state": {"retire", func(d *badDay) { d.gone(d.state); write(d.t, d.state, "") }, exitCouldNotTell, "not a directory"},
		"no release yet":          {"events", func(*badDay) {}, exitFine, "Nothing was released"},
		"a journal that is no file": {"events", func(d *badDay) { d.dirAt(filepath.Join(d.state, "release.journal")) }, exitCouldNotTell,
			"is a directory"},
		"a journal of repairs that is no file": {"events", func(d *badDay) { d.dirAt(filepath.Join(d.state, "repair.journal")) },
			exitCouldNotTell, "is a directory"},
		"a line that is no record": {"events", func(d *badDay) {
			write(d.t, filepath.Join(d.state, "release.journal"), "no record\n")
		}, exitCouldNotTell, "1 lines of the journal could not be read"},
		"clean without its journal": {"clean --yes", func(d *badDay) { d.dirAt(filepath.Join(d.state, "release.journal")) },
			exitCouldNotTell, "is a directory"},
		"clean with a file for the state": {"clean", func(d *badDay) { d.gone(d.state); write(d.t, d.state, "") }, exitCouldNotTell,
			"not a directory"},
		"no agent": {"ready", func(*badDay) {}, exitProblems, "no agent answers"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newBadDay(t)
			test.prepare(d)
			ask(t, d.command(strings.Fields(test.args)...)).expect(t, soon, []int{test.code}, test.text)
		})
	}
}

func (d *badDay) gone(name string) {
	d.t.Helper()
	if err := os.RemoveAll(name); err != nil {
		d.t.Fatal(err)
	}
}

func (d *badDay) dirAt(name string) {
	d.t.Helper()
	if err := os.Mkdir(name, 0o700); err != nil {
		d.t.Fatal(err)
	}
}

// Whether the agent is ready is not known to a user who may not ask it.
func TestReadyMayNotAsk(t *testing.T) {
	d := newBadDay(t)
	socket := filepath.Join(d.dir, "run", "agent.sock")
	d.dirAt(filepath.Dir(socket))
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := os.Chmod(socket, 0); err != nil {
		t.Fatal(err)
	}
	cmd := d.command("ready")
	setpriv := []string{"setpriv", "--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search"}
	cmd.Path, cmd.Args = "/usr/bin/setpriv", append(append(setpriv, cmd.Path), cmd.Args[1:]...)
	ask(t, cmd).expect(t, soon, []int{exitCouldNotTell}, "only root may query the running agent")
}

// While an agent runs, reload says which key of the file is wrong, and never that no agent is running.
func TestReloadOfAnInvalidFile(t *testing.T) {
	d := newBadDay(t)
	d.daemon()
	text, err := os.ReadFile(d.config)
	if err != nil {
		t.Fatal(err)
	}
	ask(t, d.command("reload")).expect(t, soon, []int{exitFine}, "the configuration is in force")
	for name, mistake := range map[string]string{"an unknown key": "noSuchKey: 1\n", "a wrong value": "remediate: {mode: 7}\n"} {
		write(t, d.config, string(text)+mistake)
		a := ask(t, d.command("reload"))
		a.expect(t, soon, []int{exitProblems}, "the configuration is refused: ", filepath.Base(d.config))
		if strings.Contains(a.screen, "no agent is running") {
			t.Errorf("%s: %s", name, a.screen)
		}
	}
	d.gone(d.config)
	write(t, d.config, string(text))
	ask(t, d.command("reload")).expect(t, soon, []int{exitFine}, "the configuration is in force")
}
