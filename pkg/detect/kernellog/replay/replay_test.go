package replay

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func replayText(t testing.TB, how Replay, log string) (all []Found) {
	t.Helper()
	_, err := how.Read(kernelMatcher(t), strings.NewReader(log), func(f Found) error {
		all = append(all, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestReplayCountsWhatItCannotRead(t *testing.T) {
	log := strings.Join([]string{
		"2,1,1,-;EXT4-fs (sda1): Remounting filesystem read-only",
		"broken",
		"2,2,2,-;" + strings.Repeat("x", 2*maxLine),
		"11,3,3,-;EXT4-fs (sdb1): Remounting filesystem read-only",
		"2,4,4,-;EXT4-fs (sdc1): Remounting filesystem read-only", // without a line break at the end
	}, "\n")
	var lines []int
	sum, err := Replay{Format: Kmsg}.Read(kernelMatcher(t), strings.NewReader(log), func(f Found) error {
		lines = append(lines, f.Number)
		return nil
	})
	want := Summary{Lines: 5, Kernel: 3, Foreign: 1, Bad: 1, Cut: 1, FirstBad: 2, FirstBadLine: "broken", Matches: 2,
		Counts: map[finding.Severity]int{finding.Fatal: 2}}
	if diff := cmp.Diff(want, sum); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if diff := cmp.Diff([]int{1, 5}, lines); diff != "" {
		t.Error(diff)
	}
	if !sum.Understood() || !sum.Problems() {
		t.Errorf("understood %v, problems %v", sum.Understood(), sum.Problems())
	}
}

func TestReplayTrustsProgramsOnRequest(t *testing.T) {
	found := replayText(t, Replay{Programs: true}, "11,3,3,-;EXT4-fs (sdb1): Remounting filesystem read-only")
	if len(found) != 1 {
		t.Errorf("%d matches", len(found))
	}
}

func TestReplayFailures(t *testing.T) {
	broken := errors.New("broken")
	if _, err := (Replay{}).Read(kernelMatcher(t), iotest.ErrReader(broken), nil); !errors.Is(err, broken) {
		t.Errorf("reading: %v", err)
	}
	log := strings.NewReader("Kernel panic - not syncing: x\n")
	if _, err := (Replay{}).Read(kernelMatcher(t), log, func(Found) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("emitting: %v", err)
	}
	sum, err := Replay{Format: Journal}.Read(kernelMatcher(t), strings.NewReader("one\ntwo\n"), nil)
	if err != nil || sum.Understood() {
		t.Errorf("%+v, %v", sum, err)
	}
	if _, err := ParseFormat("csv"); err == nil {
		t.Error("an unknown format was accepted")
	}
}

// TestReplayBoots: another boot starts with empty counts, and with links that may go down.
func TestReplayBoots(t *testing.T) {
	wait := "Nov 21 01:02:0%d host kernel: unregister_netdevice: waiting for lo to become free. Usage count = 1\n"
	log := fmt.Sprintf(wait, 1) + fmt.Sprintf(wait, 2) +
		"-- Boot 8f1d2f0d1e2c4b5a9a8b7c6d5e4f3a2b --\n" +
		"Nov 21 01:03:00 host kernel: Linux version 6.1.0\n" +
		"Nov 21 01:03:09 host kernel: r8169 0000:01:00.0 enp1s0: Link is Down\n" +
		"Nov 21 01:03:10 host kernel: unregister_netdevice: waiting for lo to become free. Usage count = 1\n" +
		"Nov 21 02:03:09 host kernel: r8169 0000:01:00.0 enp1s0: Link is Down\n"
	var got []string
	for _, f := range replayText(t, Replay{}, log) {
		got = append(got, fmt.Sprintf("%d %s %v", f.Number, f.Rule.ID, f.Raised))
	}
	want := []string{"1 unregister-netdevice false", "2 unregister-netdevice false", "6 unregister-netdevice false",
		"7 nic-link-down true"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// kernelMatcher has all rules of the kernel's log.
func kernelMatcher(t testing.TB) *kernellog.Matcher {
	t.Helper()
	m, err := kernellog.NewMatcher(rules.Kernel())
	if err != nil {
		t.Fatal(err)
	}
	return m
}
