package replay

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
)

// TestFormats: the same line of the kernel in every form in which people save it.
func TestFormats(t *testing.T) {
	const text = "EXT4-fs error (device sda1): ext4_find_entry:1436: inode #2: comm ls: reading directory lblock 0"
	octets := cmpOctets(text)
	for name, c := range map[string]struct {
		format Format
		line   string
		up     time.Duration // 0: unknown
	}{
		"bare":               {Dmesg, text, 0},
		"dmesg":              {Dmesg, "[ 2835.636329] " + text, 2835636329 * time.Microsecond},
		"dmesg at boot":      {Dmesg, "[    0.000001] " + text, time.Microsecond},
		"dmesg caller":       {Dmesg, "[ 2835.636329][ T4711] " + text, 2835636329 * time.Microsecond},
		"dmesg processor":    {Dmesg, "[ 2835.636329][    C3] " + text, 2835636329 * time.Microsecond},
		"dmesg -T":           {Dmesg, "[Tue Nov 21 01:02:03 2023] " + text, 0},
		"dmesg -T one digit": {Dmesg, "[Tue Nov  7 01:02:03 2023] " + text, 0},
		"dmesg -r":           {Dmesg, "<2>[ 2835.636329] " + text, 2835636329 * time.Microsecond},
		"dmesg -x":           {Dmesg, "kern  :crit  : [ 2835.636329] " + text, 2835636329 * time.Microsecond},
		"dmesg -d":           {Dmesg, "[ 2835.636329 <    0.000012>] " + text, 2835636329 * time.Microsecond},
		"dmesg reltime":      {Dmesg, "[Nov21 01:02] " + text, 0},
		"dmesg reltime rest": {Dmesg, "[  +0.000012] " + text, 0},
		"dmesg iso":          {Dmesg, "2023-11-21T01:02:03,123456+00:00 " + text, 0},
		"dmesg colour": {Dmesg, "\x1b[32m[ 2835.636329] \x1b[0m\x1b[33m" + text + "\x1b[0m",
			2835636329 * time.Microsecond},
		"talos":             {Dmesg, "kern: warning: [2024-10-29T13:44:17.655294812Z]: " + text, 0},
		"talos, many nodes": {Auto, "10.0.0.2: kern:    info: [2024-04-16T18:19:30.92421418Z]: " + text, 0},
		"talos, dictionary": {Auto, "kern: warning: [2024-10-29T13:44:17.655294812Z]: " + text +
			" SUBSYSTEM=block DEVICE=b8:1", 0},
		"console":           {Dmesg, "node-7 login: [ 2835.636329] " + text, 2835636329 * time.Microsecond},
		"pdsh":              {Dmesg, "node-7: [ 2835.636329] " + text, 2835636329 * time.Microsecond},
		"rsyslog 5":         {Journal, "Nov 21 01:02:03 host kernel: : " + text, 0},
		"kmsg":              {Kmsg, "2,2960,2835636329,-;" + text, 2835636329 * time.Microsecond},
		"kmsg caller":       {Kmsg, "2,2960,2835636329,-,caller=T4711;" + text, 2835636329 * time.Microsecond},
		"short":             {Journal, "Nov 21 01:02:03 host kernel: " + text, 0},
		"short-precise":     {Journal, "Nov 21 01:02:03.123456 host kernel: " + text, 0},
		"short-iso":         {Journal, "2023-11-21T01:02:03+0000 host kernel: " + text, 0},
		"short-iso-precise": {Journal, "2023-11-21T01:02:03.123456+00:00 host kernel: " + text, 0},
		"short-full":        {Journal, "Tue 2023-11-21 01:02:03 UTC host kernel: " + text, 0},
		"date and blank":    {Journal, "2023-11-21 01:02:03 host kernel: " + text, 0},
		"date without zone": {Journal, "2023-11-21T01:02:03 host kernel:[ 2835.636329] " + text,
			2835636329 * time.Microsecond},
		"netconsole behind syslog": {Journal, "Nov 21 01:02:03 10.0.0.7 2,2960,2835636329,-,caller=C0;" + text,
			2835636329 * time.Microsecond},
		"SONiC": {Journal, "2023 Nov 21 01:02:03.123456 host CRIT kernel: [ 2835.636329] " + text,
			2835636329 * time.Microsecond},
		"short-unix": {Journal, "1700528523.123456 host kernel: " + text, 0},
		"kern.log": {Journal, "Nov 21 01:02:03 host kernel: [ 2835.636329] " + text,
			2835636329 * time.Microsecond},
		"json": {Journal, `{"_TRANSPORT":"kernel","SYSLOG_FACILITY":"0","MESSAGE":"` + text +
			`","__REALTIME_TIMESTAMP":"1700528523000000","_SOURCE_MONOTONIC_TIMESTAMP":"2835636329"}`,
			2835636329 * time.Microsecond},
		"json octets": {Journal, `{"_TRANSPORT":"kernel","SYSLOG_FACILITY":"0","MESSAGE":` + octets + `}`, 0},
		"json several": {Journal, `{"_TRANSPORT":["kernel","x"],"SYSLOG_FACILITY":"0","MESSAGE":"` + text + `"}`,
			0},
		"json no transport": {Journal, `{"SYSLOG_IDENTIFIER":"kernel","MESSAGE":"` + text + `"}`, 0},
		"json-sse":          {Journal, `data: {"_TRANSPORT":"kernel","MESSAGE":"` + text + `"}`, 0},
		"json-seq":          {Journal, "\x1e" + `{"_TRANSPORT":"kernel","MESSAGE":"` + text + `"}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for _, format := range []Format{Auto, c.format} {
				p := parser{format: format}
				e := p.parse([]byte(c.line + "\r\n"))
				if diff := cmp.Diff([]any{kernelLine, text, c.up, c.up != 0}, []any{e.what, string(e.text), e.up,
					e.upKnown}); diff != "" {
					t.Errorf("format %s (-want +got):\n%s", format, diff)
				}
			}
		})
	}
	t.Run("short-monotonic", func(t *testing.T) { // looks like dmesg: only if the format is given
		p := parser{format: Journal}
		if e := p.parse([]byte("[ 2835.636329] host kernel: " + text)); e.what != kernelLine ||
			string(e.text) != text || !e.upKnown {
			t.Errorf("%+v", e)
		}
	})
}

// TestUnknownSyslog: an unknown form is a distinct error, and is not taken for bare lines of the kernel that no rule
// matches.
func TestUnknownSyslog(t *testing.T) {
	for _, line := range []string{
		"at [01:02:03] host kernel: EXT4-fs error (device sda1): x",
		"at 01:02:03 nginx: of the kernel: EXT4-fs error (device sda1): x",
	} {
		p := parser{format: Auto}
		if e := p.parse([]byte(line)); e.what != badLine || p.strange == "" {
			t.Errorf("%s: %v, form %q", line, e.what, p.strange)
		}
	}
}

// TestMoreWordsThanKnown: there may be more than a host between the time and the kernel's name, but no program.
func TestMoreWordsThanKnown(t *testing.T) {
	const text = "EXT4-fs error (device sda1): x"
	for line, want := range map[string]entry{
		"Nov 21 01:02:03 host kern.err kernel: [ 2835.636329] ":   {what: kernelLine},
		"Nov 21 01:02:03 host kern.warn kernel: [ 2835.636329] ":  {what: kernelLine, level: kernellog.LevelWarning},
		"Nov 21 01:02:03 10.0.0.1 host kernel: [68883272.06] ":    {what: kernelLine},
		"2023-02-07 15:22:13.537 0 4 localhost kernel:[  122.2] ": {what: kernelLine},
		"* Nov 21 01:02:03 host kernel: ":                         {what: kernelLine},
		"Nov 21 2023 01:02:03 host kernel: ":                      {what: kernelLine},
		"Nov 21 01:02:03 host daemon.err kernel: ":                {what: foreignLine},
		"Nov 21 01:02:03 10.0.0.1 host nginx: 1 kernel: ":         {what: foreignLine},
		"[ 9453.578188 ] ": {what: kernelLine},
	} {
		p := parser{format: Auto}
		e := p.parse([]byte(line + text))
		if (e.what == kernelLine) != (want.what == kernelLine) || e.level != want.level || e.what == kernelLine && string(e.text) != text {
			t.Errorf("%s: %v, level %v: %s", line, e.what, e.level, e.text)
		}
	}
}

// TestLevels: the level of a line is known in each format that has levels.
func TestLevels(t *testing.T) {
	for line, level := range map[string]kernellog.Level{
		"6,1,12345678,-;text":                                     kernellog.LevelInfo,
		"4,1,12345678,-;text":                                     kernellog.LevelWarning,
		"<4>[   12.345678] text":                                  kernellog.LevelWarning,
		"kern  :warn  : [   12.345678] text":                      kernellog.LevelWarning,
		"Nov 21 01:02:03 host WARNING kernel: text":               kernellog.LevelWarning,
		`{"_TRANSPORT":"kernel","PRIORITY":"4","MESSAGE":"text"}`: kernellog.LevelWarning,
		"3,1,12345678,-;text":                                     kernellog.LevelError,
		"<6>[   12.345678] text":                                  kernellog.LevelInfo,
		"<3>[   12.345678] text":                                  kernellog.LevelError,
		"kern  :info  : [   12.345678] text":                      kernellog.LevelInfo,
		"kern  :err   : [   12.345678] text":                      kernellog.LevelError,
		"Nov 21 01:02:03 host INFO kernel: text":                  kernellog.LevelInfo,
		"Nov 21 01:02:03 host ERR kernel: text":                   kernellog.LevelError,
		"Nov 21 01:02:03 host kernel: text":                       kernellog.LevelError,
		"Nov 21 01:02:03 kern.info kernel: text":                  kernellog.LevelInfo,
		`{"_TRANSPORT":"kernel","PRIORITY":"6","MESSAGE":"text"}`: kernellog.LevelInfo,
		`{"_TRANSPORT":"kernel","PRIORITY":"3","MESSAGE":"text"}`: kernellog.LevelError,
		`{"_TRANSPORT":"kernel","MESSAGE":"text"}`:                kernellog.LevelError,
		"Nov 21 01:02:03 10.0.0.1 6,1,12345678,-;text":            kernellog.LevelInfo,
	} {
		p := parser{format: Auto}
		if e := p.parse([]byte(line)); e.what != kernelLine || e.level != level || string(e.text) != "text" {
			t.Errorf("%v, level %v: %q of %s", e.what, e.level, e.text, line)
		}
	}
}

// cmpOctets writes text like journalctl writes text that is not UTF-8.
func cmpOctets(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(time.Duration(text[i]).String())
	}
	return "[" + strings.ReplaceAll(b.String(), "ns", "") + "]"
}

func TestWhoseLine(t *testing.T) {
	for name, c := range map[string]struct {
		format Format
		line   string
		want   kindOfLine
	}{
		"a program in kmsg": {Auto, "11,2963,2835640579,-;EXT4-fs error (device sda1): forged", foreignLine},
		"a program in dmesg -x": {Auto, "user  :err   : [ 2835.640579] EXT4-fs error (device sda1): forged",
			foreignLine},
		"a program in talos": {Auto, "10.0.0.2: user: warning: [2024-10-29T13:44:17.655294812Z]: EXT4-fs error " +
			"(device sda1): forged", foreignLine},
		"a program in dmesg -r":    {Auto, "<11>[ 2835.640579] EXT4-fs error (device sda1): forged", foreignLine},
		"a program in the journal": {Auto, "Nov 21 01:02:03 host kernel[12]: EXT4-fs error", foreignLine},
		"a program behind syslog": {Auto, "Nov 21 01:02:03 host 11,2963,2835640579,-;EXT4-fs error (device sda1): forged",
			foreignLine},
		"kubelet": {Auto, "Nov 21 01:02:03 host kubelet[812]: EXT4-fs error", foreignLine},
		"logger -t kernel": {Auto, `{"_TRANSPORT":"syslog","SYSLOG_IDENTIFIER":"kernel","MESSAGE":"x"}`,
			foreignLine},
		"kmsg with a facility": {Auto, `{"_TRANSPORT":"kernel","SYSLOG_FACILITY":"3","MESSAGE":"x"}`, foreignLine},
		"a boot begins":        {Auto, "-- Boot 8f1d2f0d1e2c4b5a9a8b7c6d5e4f3a2b --", bootBoundary},
		"a heading":            {Auto, "-- Journal begins at Mon 2023-11-20 01:02:03 UTC. --", silentLine},
		"an empty line":        {Auto, "   ", silentLine},
		"APEI, not JSON":       {Auto, "{1}[Hardware Error]: event severity: fatal", kernelLine},
		"broken JSON":          {Auto, `{"MESSAGE":`, badLine},
		"no record":            {Kmsg, "not a record", badLine},
		"no journal":           {Journal, "not a journal line", badLine},
		"binary":               {Auto, "\x00\x01\x02", badLine},
		"a comma list":         {Auto, "1,2,3,4 apples; and pears", kernelLine},
	} {
		t.Run(name, func(t *testing.T) {
			p := parser{format: c.format}
			if e := p.parse([]byte(c.line)); e.what != c.want {
				t.Errorf("%v, want %v", e.what, c.want)
			}
		})
	}
}
