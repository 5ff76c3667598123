package replay

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules/rulestest"
)

const journalPretty = `{
        "_BOOT_ID" : "0a",
        "_TRANSPORT" : "kernel",
        "MESSAGE" : "EXT4-fs (sda1): Remounting filesystem read-only",
        "_SOURCE_MONOTONIC_TIMESTAMP" : "12345678"
}
{
        "_TRANSPORT" : "stdout",
        "_SYSTEMD_UNIT" : "nginx.service",
        "MESSAGE" : "EXT4-fs (sdb1): Remounting filesystem read-only"
}
{
        "_TRANSPORT" : "kernel",
        "MESSAGE" : [
                88,
                70,
                83
        ]
}
`

const dmesgPretty = `{
   "dmesg": [
      {
         "pri": 6,
         "time":     0.000000,
         "msg": "Linux version 6.1.0"
      },{
         "pri": 2,
         "time":   812.000001,
         "msg": "EXT4-fs (sda1): Remounting filesystem read-only"
      },{
         "pri": 11,
         "time":   813.000001,
         "msg": "EXT4-fs (sdb1): Remounting filesystem read-only"
      },{
         "fac": "daemon",
         "pri": "err",
         "time":   814.000001,
         "msg": "EXT4-fs (sdc1): Remounting filesystem read-only"
      }
   ]
}
`

// TestRecordsOfSeveralLines: they are reported with the number and the text of their message's line.
func TestRecordsOfSeveralLines(t *testing.T) {
	for name, c := range map[string]struct {
		log    string
		number int
		line   string
	}{
		"journalctl -o json-pretty": {journalPretty, 4,
			`        "MESSAGE" : "EXT4-fs (sda1): Remounting filesystem read-only",`},
		"dmesg --json": {dmesgPretty, 10,
			`         "msg": "EXT4-fs (sda1): Remounting filesystem read-only"`},
		"a brace before a log": {"{\n[  812.000001] EXT4-fs (sda1): Remounting filesystem read-only\n", 2,
			"[  812.000001] EXT4-fs (sda1): Remounting filesystem read-only"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, log := range []string{c.log, strings.ReplaceAll(c.log, "\n", "\r\n")} {
				found := replayText(t, Replay{}, log)
				if len(found) != 1 {
					t.Fatalf("%d matches: %+v", len(found), found)
				}
				if diff := cmp.Diff([]any{c.number, c.line, "filesystem/sda1"}, []any{found[0].Number, found[0].Line,
					rulestest.SubjectText(found[0].Subject)}); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func TestRecordWithoutEnd(t *testing.T) {
	log := "{\n" + strings.Repeat(`  "MESSAGE" : "x",`+"\n", 3*maxObject/18) +
		"[  812.000001] EXT4-fs (sda1): Remounting filesystem read-only\n"
	if found := replayText(t, Replay{}, log); len(found) != 1 {
		t.Errorf("%d matches", len(found))
	}
}

func TestDockersOwnLog(t *testing.T) {
	found := replayText(t, Replay{},
		`{"log":"[  812.000001] EXT4-fs (sda1): Remounting filesystem read-only\n","stream":"stdout","time":"2023-11-21T01:02:03.123456789Z"}`)
	if len(found) != 1 {
		t.Errorf("%d matches", len(found))
	}
}

func TestCompressed(t *testing.T) {
	var gz bytes.Buffer
	w := gzip.NewWriter(&gz)
	_, _ = w.Write([]byte("[  812.000001] EXT4-fs (sda1): Remounting filesystem read-only\n"))
	_ = w.Close()
	if found := replayText(t, Replay{}, gz.String()); len(found) != 1 {
		t.Errorf("%d matches", len(found))
	}
	for _, log := range []string{gz.String()[:gz.Len()-9], "\xfd7zXZ\x00\x00\x04", "LPKSHHRH\x00\x00"} {
		if sum, err := (Replay{}).Read(kernelMatcher(t), strings.NewReader(log), func(Found) error {
			return nil
		}); err == nil {
			t.Errorf("%q: %+v", log, sum)
		}
	}
}

// TestBareText: a text without times and names may be the output of dmesg -t, or not a log at all.
func TestBareText(t *testing.T) {
	for log, want := range map[string]int{
		"a\nb\n":                           2,
		"[  812.000001] a\nb\n":            1,
		"[Nov21 01:02] a\n[  +0.000012] b": 0,
		"<6>a\n":                           0,
	} {
		sum, err := Replay{}.Read(kernelMatcher(t), strings.NewReader(log), func(Found) error { return nil })
		if err != nil || sum.Bare != want {
			t.Errorf("%q: %+v, %v", log, sum, err)
		}
	}
}
