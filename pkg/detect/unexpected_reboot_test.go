package detect

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/test/need"
)

// wtmpRecord makes one record of /var/log/wtmp.
func wtmpRecord(l wtmpLayout, kind uint16, user string, at time.Time) []byte {
	record := make([]byte, l.size)
	binary.LittleEndian.PutUint16(record, kind)
	copy(record[8:], "~")
	copy(record[40:], "~~")
	copy(record[44:], user)
	if l.time64 {
		binary.LittleEndian.PutUint64(record[l.time:], uint64(at.Unix()))
	} else {
		binary.LittleEndian.PutUint32(record[l.time:], uint32(at.Unix()))
	}
	return record
}

// fixtureLogins writes /var/log/wtmp from a list such as [{"boot": "2026-11-20T10:00:00Z"}, {"shutdown": …}, {"login": …}].
func fixtureLogins(t *testing.T, h *host.Host, file txtar.File) {
	t.Helper()
	var list []map[string]time.Time
	if err := json.Unmarshal(file.Data, &list); err != nil {
		t.Fatal(err)
	}
	var data []byte
	for _, entry := range list {
		for what, at := range entry {
			kind, user := map[string]uint16{"boot": wtmpBoot, "shutdown": wtmpRunLevel, "runlevel": wtmpRunLevel, "login": 7}[what], what
			if what == "boot" {
				user = "reboot"
			}
			data = append(data, wtmpRecord(wtmpLayouts()[0], kind, user, at)...)
		}
	}
	layOut(t, h.Files.Root, txtar.File{Name: "var/log/wtmp", Data: data})
}

func TestParseLogins(t *testing.T) {
	boot, down := time.Unix(1_700_000_000, 0), time.Unix(1_700_003_600, 0)
	want := []login{{boot, false}, {down, true}}
	for _, l := range wtmpLayouts() {
		var data []byte
		data = append(data, wtmpRecord(l, wtmpBoot, "reboot", boot)...)
		data = append(data, wtmpRecord(l, 7, "shutdown", boot)...) // a user who is called so
		data = append(data, wtmpRecord(l, wtmpRunLevel, "runlevel", boot)...)
		data = append(data, wtmpRecord(l, wtmpRunLevel, "shutdown", down)...)
		got, err := parseLogins(data, int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(login{})); diff != "" {
			t.Errorf("%d bytes: %s", l.size, diff)
		}
		if tail, err := parseLogins(data[7:], int64(len(data))); err != nil || len(tail) != 1 {
			t.Errorf("the end alone: %+v, %v", tail, err)
		}
	}
	for _, bad := range []string{"x", strings.Repeat("x", 384), strings.Repeat("\x00x", 200)} {
		if got, err := parseLogins([]byte(bad), int64(len(bad))); err == nil {
			t.Errorf("%.20q = %+v", bad, got)
		}
	}
}

// The records that utmpdump writes on this machine are understood.
func TestRealLogins(t *testing.T) {
	utmpdump := need.Program(t, "utmpdump")
	dump := exec.CommandContext(t.Context(), utmpdump, "-r")
	dump.Stdin = strings.NewReader("[2] [00000] [~~  ] [reboot  ] [~           ] [6.1.0-18-amd64      ] [0.0.0.0        ] [2026-11-20T10:00:00,000000+00:00]\n" +
		"[1] [00000] [~~  ] [shutdown] [~           ] [6.1.0-18-amd64      ] [0.0.0.0        ] [2026-11-20T11:00:00,000000+00:00]\n")
	data, err := dump.Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "wtmp")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	tail, size, err := host.Files{}.Tail(file, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseLogins(tail, size)
	if err != nil || len(got) != 2 || got[0].shutdown || !got[1].shutdown || !got[1].at.Equal(time.Date(2026, 11, 20, 11, 0, 0, 0, time.UTC)) {
		t.Errorf("%+v, %v", got, err)
	}
}

func FuzzParseLogins(f *testing.F) {
	f.Add(wtmpRecord(wtmpLayouts()[0], wtmpBoot, "reboot", time.Unix(1, 0)))
	f.Add(wtmpRecord(wtmpLayouts()[1], wtmpBoot, "reboot", time.Unix(1, 0)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, err := parseLogins(data, int64(len(data))); err != nil && got != nil {
			t.Fatal("error and value")
		}
	})
}
