package kmsg_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

func TestParseKernelRecord(t *testing.T) {
	for name, test := range map[string]struct {
		data string
		want kmsg.KernelRecord
	}{
		"kernel": {
			"2,1290,1435275090,-;EXT4-fs error (device loop0): boom",
			kmsg.KernelRecord{Level: 2, Sequence: 1290, Time: 1435275090 * time.Microsecond,
				Text: "EXT4-fs error (device loop0): boom"},
		},
		"caller and dictionary": {
			"30,7,1,-,caller=T12;text; with; more\n SUBSYSTEM=block\n DEVICE=b254:0\nnot a field",
			kmsg.KernelRecord{Facility: 3, Level: 6, Sequence: 7, Time: time.Microsecond, Text: "text; with; more"},
		},
		"escapes": {
			`6,1,1,c;caf\xc3\xa9 back\x5cslash line\x0afeed bad\xff \xzz`,
			kmsg.KernelRecord{Level: 6, Sequence: 1, Time: time.Microsecond, Fragment: true,
				Text: `café back\slash line\x0afeed bad` + "\uFFFD" + ` \xzz`},
		},
		"future fields": {"6,1,1,-,x=1,y;", kmsg.KernelRecord{Level: 6, Sequence: 1, Time: time.Microsecond}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := kmsg.ParseKernelRecord([]byte(test.data))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	for _, bad := range []string{"", "6,1,1,-", "6,1;x", "x,1,1;x", "6,-1,1;x", "6,1,99999999999999999999;x"} {
		if got, err := kmsg.ParseKernelRecord([]byte(bad)); err == nil {
			t.Errorf("ParseKernelRecord(%q) = %+v, want an error", bad, got)
		}
	}
}

func FuzzParseKernelRecord(f *testing.F) {
	f.Add([]byte("30,7,1,-,caller=T12;te\\x5cxt\n SUBSYSTEM=block\n DEVICE=b254:0"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := kmsg.ParseKernelRecord(data)
		if err != nil {
			return
		}
		if !utf8.ValidString(r.Text) || strings.ContainsAny(r.Text, "\n\x00\x1b") || r.Time < 0 {
			t.Fatalf("unsafe record %+v", r)
		}
	})
}

func TestWatchKernelLog(t *testing.T) {
	need.Root(t, "reads and writes /dev/kmsg")
	out, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	need.Kernel(t, "/dev/kmsg", err)
	defer out.Close()
	mark := fmt.Sprintf("nodeagent test %d", os.Getpid())
	ctx, cancel := context.WithCancel(t.Context())
	records, done := make(chan kmsg.KernelRecord, 100), make(chan error, 1)
	go func() {
		done <- kmsg.WatchKernelLog(ctx, slog.New(slog.DiscardHandler), func(r kmsg.KernelRecord) {
			if strings.HasPrefix(r.Text, mark) {
				records <- r
			}
		}, func() {})
	}()
	deadline := time.After(time.Minute)
	for n := 0; ; n++ { // earlier ones may still arrive
		fmt.Fprintf(out, "<12>%s %d", mark, n)
		select {
		case r := <-records:
			if r.FromKernel() || r.Facility != 1 {
				t.Errorf("record of a program: %+v", r)
			}
		case <-time.After(50 * time.Millisecond):
			continue
		case <-deadline:
			t.Fatal("no record")
		}
		break
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("it goes on")
	}
}

// It is no error if ctx ends while the stored records are read.
func TestWatchKernelLogEndsEarly(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	received := false
	err := kmsg.WatchKernelLog(ctx, slog.New(slog.DiscardHandler), func(kmsg.KernelRecord) {
		received = true
		cancel()
	}, cancel)
	need.Has(t, received, "a kernel log that can be read")
	if err != nil {
		t.Error(err)
	}
}
