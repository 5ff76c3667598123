package system

import (
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/tailfile"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/detect/system/wtmp"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestParseLogins(t *testing.T) {
	boot, down := time.Unix(1_700_000_000, 0), time.Unix(1_700_003_600, 0)
	want := []wtmp.Login{{At: boot, Shutdown: false}, {At: down, Shutdown: true}}
	for _, l := range wtmp.WtmpLayouts() {
		var data []byte
		data = append(data, checktest.WtmpRecord(l, wtmp.WtmpBoot, "reboot", boot)...)
		data = append(data, checktest.WtmpRecord(l, 7, "shutdown", boot)...) // a user with this name
		data = append(data, checktest.WtmpRecord(l, wtmp.WtmpRunLevel, "runlevel", boot)...)
		data = append(data, checktest.WtmpRecord(l, wtmp.WtmpRunLevel, "shutdown", down)...)
		got, err := wtmp.ParseLogins(data, int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(wtmp.Login{})); diff != "" {
			t.Errorf("%d bytes: %s", l.Size, diff)
		}
		if tail, err := wtmp.ParseLogins(data[7:], int64(len(data))); err != nil || len(tail) != 1 {
			t.Errorf("the end alone: %+v, %v", tail, err)
		}
	}
	for _, bad := range []string{"x", strings.Repeat("x", 384), strings.Repeat("\x00x", 200)} {
		if got, err := wtmp.ParseLogins([]byte(bad), int64(len(bad))); err == nil {
			t.Errorf("%.20q = %+v", bad, got)
		}
	}
}

// ParseLogins understands the records that utmpdump writes on this machine.
func TestRealLogins(t *testing.T) {
	utmpdump := need.Program(t, "utmpdump")
	dump := exec.CommandContext(t.Context(), utmpdump, "-r")
	dump.Stdin = strings.NewReader("[2] [00000] [~~  ] [reboot  ] [~           ] [6.1.0-18-amd64      ] [0.0.0.0     " +
		"   ] [2026-11-20T10:00:00,000000+00:00]\n[1] [00000] [~~  ] [shutdown] [~           ] [6.1.0-18-amd64      " +
		"] [0.0.0.0        ] [2026-11-20T11:00:00,000000+00:00]\n")
	data, err := dump.Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "wtmp")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	tail, size, err := tailfile.Tail(host.Files{}, file, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	got, err := wtmp.ParseLogins(tail, size)
	if err != nil || len(got) != 2 || got[0].Shutdown || !got[1].Shutdown ||
		!got[1].At.Equal(time.Date(2026, 11, 20, 11, 0, 0, 0, time.UTC)) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestUnexpectedRebootRecorded: of three boots, the first ended in order and the second in a panic.
func TestUnexpectedRebootRecorded(t *testing.T) {
	for name, test := range map[string]struct {
		records int
		booted  time.Time // by the kernel
		want    string
	}{
		"after an orderly shutdown": {3, time.Date(2026, 11, 22, 14, 50, 30, 0, time.UTC), ""},
		"after a panic": {4, time.Unix(1795359258, 0), "the machine, up since 2026-11-22T14:50:40Z, was booted again at " +
			"2026-11-22T14:54:36Z without an orderly shutdown"},
	} {
		t.Run(name, func(t *testing.T) {
			m := checktest.NewLoadMachine(t)
			m.Host.Clock = func() finding.Timestamp {
				return finding.Timestamp{Wall: test.booted.Add(m.Up), Boot: "b", SinceBoot: m.Up}
			}
			m.Write("var/log/wtmp", string(recordedLogins(t)[:test.records*wtmp.WtmpLayouts()[0].Size]))
			got := ""
			for _, f := range m.Run(UnexpectedReboot()) {
				got += f.Message
			}
			if got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

// recordedLogins returns the content of a /var/log/wtmp.
func recordedLogins(t *testing.T) []byte {
	t.Helper()
	file, err := os.ReadFile("testdata/unexpected-reboot/crash.wtmp")
	if err != nil {
		t.Fatal(err)
	}
	encoded := ""
	for line := range strings.Lines(string(file)) {
		if !strings.HasPrefix(line, "#") {
			encoded += line
		}
	}
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func FuzzParseLogins(f *testing.F) {
	f.Add(checktest.WtmpRecord(wtmp.WtmpLayouts()[0], wtmp.WtmpBoot, "reboot", time.Unix(1, 0)))
	f.Add(checktest.WtmpRecord(wtmp.WtmpLayouts()[1], wtmp.WtmpBoot, "reboot", time.Unix(1, 0)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, err := wtmp.ParseLogins(data, int64(len(data))); err != nil && got != nil {
			t.Fatal("error and value")
		}
	})
}
