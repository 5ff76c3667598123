package replay

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// sized is a field of journalctl -o export whose value has a line break.
func sized(name, value string) string {
	return name + "\n" + string(binary.LittleEndian.AppendUint64(nil, uint64(len(value)))) + value + "\n"
}

const (
	exportHead  = "__CURSOR=s=39;i=1\n__REALTIME_TIMESTAMP=1700528523123456\n__MONOTONIC_TIMESTAMP=812000001\n_BOOT_ID=0f3c\n"
	verboseHere = "Tue 2023-11-21 01:02:03.123456 UTC [s=39;i=1;b=0f3c;m=3066ed41;t=60a9f0d6c0a40;x=1]\n"
	readOnly    = "EXT4-fs (sda1): Remounting filesystem read-only"
	unitFailed  = "    _PID=1\n    _SYSTEMD_UNIT=init.scope\n    MESSAGE=kubelet.service: Failed with result 'exit-code'.\n"
)

// TestJournalFields: journalctl -o export and -o verbose, of the kernel, of a daemon, with line breaks and large fields.
func TestJournalFields(t *testing.T) {
	m, daemons := kernelMatcher(t), newDaemonTable(t)
	fromKernel := "_TRANSPORT=kernel\nSYSLOG_IDENTIFIER=kernel\nMESSAGE=" + readOnly + "\n"
	for name, c := range map[string]struct{ log, want string }{
		"export":               {exportHead + fromKernel + "\n", "1 ext4-readonly"},
		"export, second":       {exportHead + "MESSAGE=x\n_TRANSPORT=kernel\n\n" + exportHead + fromKernel + "\n", "8 ext4-readonly"},
		"export, cut off":      {exportHead + fromKernel, "1 ext4-readonly"},
		"export, large field":  {exportHead + sized("COREDUMP", strings.Repeat("a\n", 200<<10)) + fromKernel + "\n" + exportHead + fromKernel, "1 ext4-readonly, 204811 ext4-readonly"},
		"export, line break":   {exportHead + "_TRANSPORT=kernel\n" + sized("MESSAGE", readOnly+"\nx") + "\n", "1 ext4-readonly"},
		"export, long line":    {exportHead + "_CMDLINE=" + strings.Repeat("a", 200<<10) + "\n" + fromKernel + "\n", "1 ext4-readonly"},
		"verbose":              {verboseHere + "    _TRANSPORT=kernel\n    MESSAGE=" + readOnly + "\n", "1 ext4-readonly"},
		"verbose, old journal": {"-- Logs begin at Tue 2023-11-21 01:02:03 UTC. --\n" + verboseHere + "    _TRANSPORT=kernel\n    MESSAGE=" + readOnly + "\n", "2 ext4-readonly"},
		"verbose, a daemon":    {verboseHere + unitFailed + verboseHere + "    _TRANSPORT=kernel\n    MESSAGE=" + readOnly + "\n    _BOOT_ID=0f3c\n", "1 kubelet-unit-failed, 5 ext4-readonly"},
		"verbose, colours":     {verboseHere + "    \x1b[32m_TRANSPORT=kernel\x1b[0m\n    \x1b[1mMESSAGE=" + readOnly + "\x1b[0m\n", "1 ext4-readonly"},
		"verbose, CRLF":        {strings.ReplaceAll(verboseHere+"    _TRANSPORT=kernel\n    MESSAGE="+readOnly+"\n", "\n", "\r\n"), "1 ext4-readonly"},

		"export, a program quotes a record":   {exportHead + "_TRANSPORT=stdout\n_COMM=nginx\n_PID=7\n" + sized("MESSAGE", "x\n\n"+exportHead+fromKernel+"\n") + "\n", ""},
		"export, a program's own name":        {exportHead + "_TRANSPORT=stdout\n_COMM=nginx\n_PID=7\nSYSLOG_IDENTIFIER=kernel\nMESSAGE=" + readOnly + "\n\n", ""},
		"verbose, a program quotes a field":   {verboseHere + "    MESSAGE=x\n            _TRANSPORT=kernel\n            MESSAGE=" + readOnly + "\n    _TRANSPORT=stdout\n    _COMM=nginx\n    _PID=7\n", ""},
		"verbose, two transports":             {verboseHere + "    MESSAGE=" + readOnly + "\n    _TRANSPORT=kernel\n    _TRANSPORT=stdout\n", ""},
		"export, within another log":          {"[    1.000000] usb 1-1: x\n" + exportHead + fromKernel + "\n", ""},
		"verbose, within another log":         {"[    1.000000] usb 1-1: x\n" + verboseHere + "    _TRANSPORT=kernel\n    MESSAGE=" + readOnly + "\n", ""},
		"verbose, no blanks before the field": {verboseHere + "MESSAGE=" + readOnly + "\n_TRANSPORT=kernel\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var found []string
			sum, err := Replay{Daemons: daemons}.Read(m, strings.NewReader(c.log), func(f Found) error {
				found = append(found, fmt.Sprint(f.Number, " ", f.Rule.ID))
				return nil
			})
			if got := strings.Join(found, ", "); got != c.want || err != nil {
				t.Errorf("got %q, want %q: %+v, %v", got, c.want, sum, err)
			}
			if lines := strings.Count(c.log, "\n"); sum.Lines != lines || sum.Cut > 0 {
				t.Errorf("%d lines of %d, %d cut", sum.Lines, lines, sum.Cut)
			}
		})
	}
}

// TestChangedExport: a paste lost bytes of a size: an error, not a healthy log.
func TestChangedExport(t *testing.T) {
	for _, rest := range []string{"MESSAGE\nEXT4-fs error (device sda1)\n", "MESSAGE\n", sized("MESSAGE", readOnly)[:30]} {
		sum, err := Replay{}.Read(kernelMatcher(t), strings.NewReader(exportHead+rest), func(Found) error { return nil })
		if err == nil {
			t.Errorf("%q: %+v", rest, sum)
		}
	}
}
