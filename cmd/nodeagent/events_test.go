package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/mutate"
)

func TestEvents(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Second)
	old, id := now.Add(-48*time.Hour), strings.Repeat("0123456789abcdef", 4)
	line := func(at time.Time, event, rest string) string {
		return fmt.Sprintf(`{"at":{"wall":%q,"boot":"b","up":1},"event":%q,"group":"u1",`+
			`"pod":{"uid":"u1","namespace":"ns","name":"job"}%s}`, at.Format(time.RFC3339), event, rest)
	}
	whole := []string{
		line(old, "begin", ""),
		line(old, "intent", `,"kind":"sandbox","id":"`+id+`","does":"remove it"`),
		line(old, "end", `,"kind":"sandbox","id":"`+id+`","result":"released"`),
		line(old, "intent", `,"kind":"cgroup","id":"/a"`), line(old, "end", `,"kind":"cgroup","id":"/a","result":"released"`),
		line(old, "intent", `,"kind":"cgroup","id":"/b"`), line(old, "end", `,"kind":"cgroup","id":"/b","result":"released"`),
		line(old, "finish", `,"result":"released"`),
	}
	cut := []string{line(now, "begin", ""), line(now, "intent", `,"kind":"mount","id":"/m#7"`)}
	first := old.Local().Format(time.DateTime) + "  pod ns/job (u1): released\n" +
		"    released    sandbox        0123456789abc\n    released    cgroup         /a and 1 more\n"
	second := now.Local().Format(time.DateTime) +
		"  pod ns/job (u1): not ended: the agent or the machine was stopped\n    not ended   mount          /m#7\n"
	for name, test := range map[string]struct {
		journal []string
		args    []string
		locked  bool // a release is going on
		want    string
		code    int
	}{
		"under way": {journal: append(whole, cut...), locked: true, want: first + now.Local().Format(time.DateTime) +
			"  pod ns/job (u1): under way\n    not ended   mount          /m#7\n"},
		"an ended one while another begins": {journal: whole, locked: true, want: first},
		"nothing yet":                       {want: "Nothing was released on this node.\n"},
		"all":                               {journal: append(whole, cut...), want: first + second},
		"not too old":                       {journal: append(whole, cut...), args: []string{"--since", "24h"}, want: second},
		"of a pod":                          {journal: whole, args: []string{"--pod", "ns/job"}, want: first},
		"of another pod":                    {journal: whole, args: []string{"--pod", "other"}, want: "Nothing was released on this node.\n"},
		"lines cut short":                   {journal: append(whole, "{\"at\":"), want: first + "1 lines of the journal could not be read.\n", code: 2},
		"the beginning is gone": {journal: whole[3:],
			want: strings.ReplaceAll(first, "    released    sandbox        0123456789abc\n", "")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			config := filepath.Join(dir, "config.yaml")
			write(t, config, "stateDir: "+dir+"\n")
			if test.journal != nil {
				write(t, filepath.Join(dir, "release.journal"), strings.Join(test.journal, "\n")+"\n")
			}
			if test.locked {
				lock, err := mutate.Lock(dir)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = lock.Unlock() }()
			}
			var out strings.Builder
			root := newRoot()
			root.SetOut(&out)
			root.SetArgs(append([]string{"events", "-c", config}, test.args...))
			err := root.ExecuteContext(t.Context())
			end := &exitError{}
			errors.As(err, &end)
			if diff := cmp.Diff(test.want, out.String()); diff != "" || end.Code != test.code {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
