package replay

import (
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
)

const (
	corrupted = "EXT4-fs error (device sdb1): ext4_find_entry:1531: inode #2: comm worker: reading directory lblock 0"
	stampedOf = "[  123.456789] " + corrupted
	plegKlog  = `E1120 08:14:02.123456    2397 kubelet.go:2412] "Skipping pod synchronization" err="PLEG is not healthy: pleg was last seen active 3m5.123s ago; threshold is 3m0s"`
	taskExit  = `level=error msg="failed to handle container TaskExit event id:\"1\"" error="failed to stop container: x"`
)

var escaped = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// TestPrefixes: pasted lines have other text before their head.
func TestPrefixes(t *testing.T) {
	m, daemons := kernelMatcher(t), newDaemonTable(t)
	for name, c := range map[string]struct{ line, rule string }{
		"dmesg -T, German":      {"[Mo Jun  3 05:16:06 2024] " + corrupted, "ext4-error"},
		"dmesg -T, Chinese":     {"[一 6月  3 05:16:06 2024] " + corrupted, "ext4-error"},
		"dmesg -T, French":      {"[lun. juin   3 05:16:06 2024] " + corrupted, "ext4-error"},
		"dmesg -T, Russian":     {"[Пн июн  3 05:16:06 2024] " + corrupted, "ext4-error"},
		"dmesg -T, Japanese":    {"[月  6月 13 05:16:06 2024] " + corrupted, "ext4-error"},
		"dmesg -T, Thai":        {"[จ. มิ.ย.  3 05:16:06 2024] " + corrupted, "ext4-error"},
		"dmesg -T, then stamps": {"[Mon Jun  3 05:16:06 2024] " + stampedOf, "ext4-error"},
		"journal, German":       {"Mär 20 08:14:02 node1 kernel: " + corrupted, "ext4-error"},
		"short-full, Spanish":   {"lun. 2024-06-03 05:16:06 CEST node1 kernel: " + corrupted, "ext4-error"},
		"grep -n":               {"1234:" + stampedOf, "ext4-error"},
		"grep -H":               {"/var/log/kern.log.1:Nov 20 08:14:02 node1 kernel: " + stampedOf, "ext4-error"},
		"grep -nH -C":           {"kern.log-77-Nov 20 08:14:02 node1 kernel: " + corrupted, "ext4-error"},
		"cat -n":                {"    12\t" + stampedOf, "ext4-error"},
		"quoted":                {"> " + stampedOf, "ext4-error"},
		"quoted twice":          {">> > " + stampedOf, "ext4-error"},
		"quoted as HTML":        {"&gt; " + stampedOf, "ext4-error"},
		"a list":                {"  * " + stampedOf, "ext4-error"},
		"in quotation marks":    {`"[  123.456789] EXT4-fs (sdb1): Remounting filesystem read-only",`, "ext4-readonly"},
		"a container, short":    {"2024-06-03T05:16:06.1234Z " + stampedOf, "ext4-error"},
		"a container, CRI":      {"2024-06-03T05:16:06.123456789Z stderr F " + stampedOf, "ext4-error"},
		"kubectl --prefix":      {"[pod/dmesg-abc/dmesg] " + stampedOf, "ext4-error"},
		"docker compose":        {"kubelet_1  | " + plegKlog, "kubelet-pleg-silent"},
		"a collector's stamp":   {"2024-06-03T05:16:06.123Z node1 " + stampedOf, "ext4-error"},
		"ts of moreutils":       {"Jun 03 05:16:06 " + stampedOf, "ext4-error"},
		"a stamp before syslog": {"Jun 03 05:16:06 Jun 03 05:16:05 node1 kernel: " + corrupted, "ext4-error"},
		"another date":          {"03.06.24 05:16:06 " + stampedOf, "ext4-error"},
		"date, daemon":          {"2024/06/03 05:16:06 node1 kubelet[99]: " + plegKlog, "kubelet-pleg-silent"},
		"grep -H, kubelet.log":  {"kubelet.log:" + plegKlog, "kubelet-pleg-silent"},
		"grep -n, containerd":   {`12:time="2024-07-04T16:24:03.119492729Z" ` + taskExit, "runtime-shim-failed"},
		"filebeat":              {`{"@timestamp":"x","message":"` + stampedOf + `","host":{"name":"n1"}}`, "ext4-error"},
		"filebeat, journald": {`{"message":"` + corrupted + `","syslog":{"identifier":"kernel"},"host":{"name":"n1"}}`,
			"ext4-error"},
		"cloud logging": {`{"jsonPayload":{"MESSAGE":"` + escaped.Replace(plegKlog) +
			`","SYSLOG_IDENTIFIER":"kubelet"},"timestamp":"x"}`, "kubelet-pleg-silent"},
		"Elasticsearch": {`{"_index":"x","_source":{"log":"` + escaped.Replace("Nov 20 08:14:02 node1 kubelet[99]: "+plegKlog) +
			`"}}`, "kubelet-pleg-silent"},
		"fluentd": {`2024-06-03 05:16:06 +0000 kernel: {"priority":"3","message":"` + corrupted + `"}`, "ext4-error"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff([]string{c.rule}, replayed(t, m, daemons, c.line)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestDocuments: one line may be a document with many records, and a file may be UTF-16.
func TestDocuments(t *testing.T) {
	m, daemons := kernelMatcher(t), newDaemonTable(t)
	line := "Jun  3 05:16:06 node1 kernel: " + corrupted
	for name, text := range map[string]string{
		"Loki":         `{"status":"success","data":{"resultType":"streams","result":[{"stream":{"job":"kern"},"values":[["1717391766123456789","` + line + `"]]}]}}`,
		"CloudWatch":   `{"events":[{"timestamp":1,"message":"` + line + `","ingestionTime":1}],"nextForwardToken":"f/1"}`,
		"a search":     `{"took":3,"hits":{"hits":[{"_id":"a","_source":{"message":"` + line + `"}}]}}`,
		"Ansible":      `{"changed":true,"rc":0,"stdout":"[    1.000000] x\n` + stampedOf + `\n"}`,
		"an array":     `[{"_TRANSPORT":"kernel","MESSAGE":"` + corrupted + `"}]`,
		"UTF-16":       utf16Of("\ufeff" + line + "\r\n"),
		"zeros":        "\x00\x00\x00" + line + "\x00",
		"no priority":  "1 2024-06-03T05:16:06Z node1 kernel - - - " + corrupted,
		"short-delta":  "[  123.456789 <    0.000001 >] node1 kernel: " + corrupted,
		"log stream":   "2024-06-03T05:16:06.123000+00:00 i-0abc " + line,
		"Latin-1":      "[Do M\xe4r 14 05:16:06 2024] " + corrupted,
		"syslog-ng":    `{"PROGRAM":"kernel","PRIORITY":"err","MESSAGE":"` + corrupted + `","HOST":"n"}`,
		"K3s, no name": `time="2024-11-20T08:14:02Z" level=error msg="` + escaped.Replace(plegKlog) + `"`,
	} {
		t.Run(name, func(t *testing.T) {
			want := "ext4-error"
			if strings.Contains(text, "PLEG") {
				want = "kubelet-pleg-silent"
			}
			if got := strings.Join(replayed(t, m, daemons, text), ", "); got != want {
				t.Errorf("got %q", got)
			}
		})
	}
	if got := replayed(t, m, daemons, `{"events":[{"agent":"`+line+`","note":"`+stampedOf+`"}]}`); len(got) > 0 {
		t.Errorf("fields that have no line of a log: %q", got)
	}
}

func utf16Of(text string) string {
	var b strings.Builder
	for _, unit := range utf16.Encode([]rune(text)) {
		b.WriteString(string([]byte{byte(unit), byte(unit >> 8)}))
	}
	return b.String()
}

// TestProducts: kubelet and containerd under the names of products, and inside the logs of products.
func TestProducts(t *testing.T) {
	m, daemons := kernelMatcher(t), newDaemonTable(t)
	const head = "Nov 20 08:14:02 node1 "
	for name, c := range map[string]struct{ line, rule string }{
		"K8s snap":          {head + "k8s.kubelet[2397]: " + plegKlog, "kubelet-pleg-silent"},
		"snap's unit":       {head + "snap.microk8s.daemon-kubelite[2397]: " + plegKlog, "kubelet-pleg-silent"},
		"K3s":               {head + "k3s[1636]: " + plegKlog, "kubelet-pleg-silent"},
		"RKE2's agent":      {head + "rke2-agent[1636]: " + plegKlog, "kubelet-pleg-silent"},
		"a name of its own": {head + "acmed[2397]: " + plegKlog, "kubelet-pleg-silent"},
		"RFC 5424":          {"<30>1 2023-11-21T01:02:03.123Z host acmed 812 - - " + plegKlog, "kubelet-pleg-silent"},
		"a unit of its own": {`{"_TRANSPORT":"stdout","_SYSTEMD_UNIT":"acme.service","_SYSTEMD_CGROUP":"/system.slice/acme.service","_COMM":"acmed","_PID":"7","MESSAGE":"` +
			escaped.Replace(plegKlog) + `"}`, "kubelet-pleg-silent"},
		"k0s": {head + `k0s[2397]: time="2024-11-20 08:14:02" level=info msg="` + escaped.Replace(plegKlog) +
			`" component=kubelet stream=stderr`, "kubelet-pleg-silent"},
		"k0s, containerd": {head + `k0s[2397]: time="2024-11-20 08:14:02" level=info msg="` +
			escaped.Replace(`time="2024-11-20T08:14:02.1Z" `+taskExit) + `" component=containerd stream=stderr`,
			"runtime-shim-failed"},
		"k8s snap's containerd": {head + `k8s.containerd[99]: time="2024-07-04T16:24:03.119492729Z" ` + taskExit,
			"runtime-shim-failed"},
		"containerd's JSON": {`{"error":"x","level":"error","msg":"failed to start shim","time":"2024-07-04T16:24:03.119492729Z"}`,
			"runtime-shim-failed"},
		"Talos": {`10.5.0.2: {"ts":1753121331053.9,"caller":"kubelet/kubelet.go:2406","msg":"Skipping pod synchronization","err":"PLEG is not healthy: pleg was last seen active 3m5.123s ago; threshold is 3m0s"}`,
			"kubelet-pleg-silent"},
		"another component": {head + `k0s[2397]: time="2024-11-20 08:14:02" level=info msg="` + escaped.Replace(plegKlog) +
			`" component=kube-apiserver stream=stderr`, ""},
		"another program":  {head + "nginx[12]: PLEG is not healthy: pleg was last seen active 3m5s ago", ""},
		"a helper":         {head + "kubelet-helper[12]: PLEG is not healthy: pleg was last seen active 3m5s ago", ""},
		"a container":      {head + "k8s_kubelet[12]: PLEG is not healthy: pleg was last seen active 3m5s ago", ""},
		"not kubelet's":    {head + "kube-proxyd[12]: " + strings.Replace(plegKlog, "kubelet.go", "proxier.go", 1), ""},
		"a pod":            {`{"_SYSTEMD_UNIT":"cri-1.scope","_SYSTEMD_CGROUP":"/kubepods/pod1/cri-1.scope","_COMM":"acmed","MESSAGE":"` + escaped.Replace(plegKlog) + `"}`, ""},
		"quotes a kernel":  {"nginx[12]: " + stampedOf, ""},
		"a device's words": {"usb 1-1: Product: " + stampedOf, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(replayed(t, m, daemons, c.line), ", "); got != c.rule {
				t.Errorf("got %q, want %q", got, c.rule)
			}
		})
	}
}

// TestNotALog: text that is not a log does not count as a healthy log, and neither does a line with words of a fault
// behind an unknown head.
func TestNotALog(t *testing.T) {
	for name, c := range map[string]struct {
		log        string
		understood bool
		doubt      int
	}{
		"prose":      {"# Node\n\nThe node was fine: it ran for days.\n", false, 0},
		"YAML":       {"apiVersion: v1\nkind: Pod\nmetadata:\n  name: x\n", false, 0},
		"CSV":        {"a,b,c\n1,2,3\n", false, 0},
		"a listing":  {"total 8\ndrwxr-xr-x 2 root root 4096 Jun  3 05:16 bin\n", false, 0},
		"JSON":       {"{\"a\": 1}\n", true, 0}, // of another program
		"dmesg -t":   {"Linux version 6.1.0\nusb 1-1: new device\n  Normal zone: 3 pages\n", true, 0},
		"no stamp":   {"2024-06-03T05:16:06.123Z node1 " + corrupted + "\n", false, 1},
		"table":      {"| 2024-06-03 05:16:06 | node1 | " + corrupted + " |\n", false, 1},
		"after well": {"[    1.000000] usb 1-1: new device\nnode1 says " + corrupted + "\n", true, 2},
		"wall time":  {"[Mo Jun  3 05:16:06 2024] usb 1-1: new device\n", true, 0},
		"device":     {"[    1.000000] usb 1-1: Product: " + corrupted + "\n", true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			sum, err := Replay{Daemons: newDaemonTable(t)}.Read(kernelMatcher(t), strings.NewReader(c.log),
				func(f Found) error {
					t.Errorf("%s: %s", f.Rule.ID, f.Line)
					return nil
				})
			doubt := 0
			if sum.Doubt != nil {
				doubt = sum.Doubt.Number
			}
			if err != nil || sum.Understood() != c.understood || doubt != c.doubt {
				t.Errorf("%+v, %v", sum, err)
			}
		})
	}
}

// TestBareKernel: most lines of a healthy kernel are recognised by their start alone.
func TestBareKernel(t *testing.T) {
	known, lines := 0, benignLines(t)
	for _, line := range lines {
		if looksLikeKernel(line) {
			known++
		}
	}
	if 3*known < 2*len(lines) {
		t.Errorf("%d of %d lines", known, len(lines))
	}
}
