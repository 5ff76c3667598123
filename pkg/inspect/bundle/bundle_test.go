package bundle

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/verdict"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// planted are texts that contain a secret, always "hunter2".
func planted() map[string]string {
	const pem = "-----BEGIN RSA PRIVATE KEY-----\nhunter2AAAA\nAAAAhunter2=\n-----END RSA PRIVATE KEY-----"
	return map[string]string{
		"a key":                pem,
		"a key of one line":    strings.ReplaceAll(pem, "\n", `\n`),
		"a key that is cut":    pem[:50],
		"a certificate":        strings.ReplaceAll(pem, "RSA PRIVATE KEY", "CERTIFICATE"),
		"a bearer token":       "Authorization: Bearer hunter2hunter2hunter2",
		"an error with one":    `get: header "bearer hunter2hunter2.x": refused`,
		"a web token":          "token is eyJhunter2hunter2.eyJhunter2hunter2.hunter2",
		"a URL":                "mount nfs://joe:hunter2@server/share: refused",
		"a URL with an @":      "https://joe:p@hunter2@server/",
		"a query":              "GET https://server/path?x=1&access_token=hunter2&y=2",
		"an option of a mount": "rw,username=joe,password=hunter2,vers=3",
		"YAML":                 "clientSecret: hunter2",
		"JSON in a text":       `{"password":"hunter2"}`,
		"arguments":            `audit: type=1309 argc=3 a0="mysql" a1="-phunter2"`,
		"a cookie of cloud":    "AWS_SECRET_ACCESS_KEY=hunter2",

		"an argument of its own":        "mysqldump --password hunter2 shop",
		"one with a name of its own":    "tool --registry-token 'hunter2 hunter2' shop",
		"a user with a password":        "curl -u joe:hunter2 server",
		"the same of a proxy":           "curl --proxy-user=joe:hunter2 server",
		"a token that is the user":      "git clone https://hunter2hunter2hunter2hunter2@server/a",
		"a signature of a URL":          "GET https://a.blob/x?sv=1&sig=hunter2%2Bhunter2%3D&se=2",
		"a signature of another cloud":  "GET https://b/x?X-Amz-Signature=hunter2&X-Amz-Expires=1",
		"a connection string":           "AccountName=a;AccountKey=hunter2hunter2==;EndpointSuffix=c",
		"a shared access key":           "Endpoint=sb://a/;SharedAccessKey=hunter2",
		"a token of GitLab":             "glpat-hunter2hunter2hunter2",
		"a fine token of GitHub":        "github_pat_hunter2hunter2hunter2",
		"a token of Slack":              "xoxb-hunter2hunter2",
		"a hook of Slack":               "https://hooks.slack.com/services/T0/B0/hunter2",
		"a key of Google":               "AIzahunter2hunter2hunter2hunter2hunter2hunt",
		"a token of Google":             "ya29.hunter2hunter2hunter2",
		"a token of a vault":            "hvs.hunter2hunter2hunter2hunter2",
		"a token of npm":                "npm_hunter2hunter2hunter2hunter2hunter2hunt",
		"a password of iSCSI":           "node.session.auth.password_in = hunter2",
		"an option of cifs":             "rw,user=joe,pass=hunter2;hunter2,vers=3",
		"a second password of cifs":     "rw,password2=hun&ter2hunter2,vers=3",
		"a password with a space":       `password="hunter2 hunter2"`,
		"a password with a quote":       `{"password":"a\"hunter2"}`,
		"an encrypted web token":        "eyJhunter2hunter2.hunter2.hunter2.hunter2.hunter2",
		"a key of a tunnel":             "PrivateKey = hunter2hunter2=",
		"a key of a wireless network":   "psk=hunter2",
		"a key of age":                  "AGE-SECRET-KEY-1HUNTER2hunter2hunter2hunter2",
		"a registry's login in base64":  `{"auths":{"r":{"auth":"aHVudGVyMhunter2"}}}`,
		"a flag that comes first":       "--token hunter2",
		"a flag in quotes":              `"--db-password" "hunter2"`,
		"a short flag of a database":    "mysql -ujoe -phunter2 shop",
		"a short flag of a registry":    "docker login -u joe -p hunter2 registry",
		"a password of sshpass":         "sshpass -p hunter2 ssh server",
		"a password of OpenSSL":         "openssl rsa -passin pass:hunter2 -in a",
		"a secret key":                  "SECRET_KEY=hunter2",
		"a cookie":                      "Cookie: session=hunter2",
		"a key of a model":              "sk-hunter2hunter2hunter2hunter2",
		"a key of Ceph":                 "client.admin key AQhunter2hunter2hunter2hunter2hunter2hun==",
		"a private key of another kind": "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n-----END OPENSSH PRIVATE KEY-----",
	}
}

func TestScrub(t *testing.T) {
	for name, text := range planted() {
		if got := Scrub(text); strings.Contains(strings.ToLower(got), "hunter2") {
			t.Errorf("%s, alone: %s", name, got)
		}
		if got := Scrub("before " + text + " after"); strings.Contains(got, "hunter2") ||
			!strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") && !strings.Contains(name, "cut") {
			t.Errorf("%s: %s", name, got)
		}
	}
	for _, text := range []string{ // texts that the evaluation and the reader need
		"/var/lib/kubelet/pods/5d8d2d6a-0000-4000-8000-000000000000/volumes/kubernetes.io~secret/token",
		"https://127.0.0.1:10250/pods: status 403: Forbidden",
		"/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/cri-containerd-0123456789abcdef.scope",
		"no witness knows pod x; seen in 3 passes over 10m0s", "v1.36.3", "containerd://1.7.2",
		"EXT4-fs (vda1): mounted filesystem 1-2-3 r/w with ordered data mode. Quota mode: none.",
		"/usr/bin/kubelet --kubeconfig /etc/kubernetes/kubelet.conf --token-ttl 5m --v=2",
		"journalctl -u kubelet.service", "https://registry.k8s.io/pause@sha256:0123456789abcdef",
		"key 12 of user 1000 has 200 of 200 keys", "pass 3 of 3", "hf_sync took 3 s",
	} {
		if got := Scrub(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// Secrets in the table's forms are removed in any context.
func FuzzScrub(f *testing.F) {
	f.Add("", "")
	f.Add(`password="`, `" x`)
	f.Add("-----BEGIN A-----", "-----END A-----")
	f.Add(`{"a":"`, `"}`)
	f.Add("https://a:b@", "&token=")
	f.Fuzz(func(t *testing.T, before, after string) {
		for name, text := range planted() {
			if strings.Contains(before+after, "hunter2") {
				return
			}
			if got := Scrub(before + "\n" + text + "\n" + after); strings.Contains(got, "hunter2") {
				t.Errorf("%s: %q", name, got)
			}
		}
	})
}

func TestScrubJSON(t *testing.T) {
	got, err := ScrubJSON([]byte(`{"token":"hunter2","tokens":5,"list":[{"url":"https://a:hunter2@b"}],"ok":true,
		"args":["run","--db-password","hunter2","--v","2"],"password_in":"hunter2"}`))
	want := `{"args":["run","--db-password","[removed]","--v","2"],"list":[{"url":"https://a:[removed]@b"}],"ok":true,` +
		`"password_in":"[removed]","token":"[removed]","tokens":5}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
}

const uid = "5d8d2d6a-0000-4000-8000-000000000000"

// withPod is an inspection of one pod with names and texts in every kind of place.
func withPod(text string) Bundle {
	pod := object.Pod{UID: uid, Namespace: "payroll", Name: "merger-0"}
	known := map[string]witness.PodFact{uid: {Pod: pod}}
	b := Bundle{Node: "node-7", Notes: []string{text}, Paths: host.Paths{KubeletAPI: text}}
	b.Evidence = verdict.Evidence{
		Objects: []object.Object{{Kind: object.Mount, ID: "/var/log/pods/payroll_merger-0_" + uid + "#" + text,
			Pod: pod, Foreign: text, Facts: map[string]string{"source": text, "name": "merger-0"},
			Holders: []object.Holder{{PID: 1, Command: text, Pod: pod}}}},
		History:  object.History{"mount/" + text: {Pod: pod}},
		Failures: []object.Failure{{What: "mount", Error: "of payroll/merger-0 on node-7: " + text}},
	}
	b.Evidence.Inventory.Kubelet = witness.KubeletInventory{Pods: known,
		Response: witness.Response{Asked: true, Err: errors.New(text)}}
	b.Evidence.Inventory.Cluster = witness.ClusterInventory{Pods: known, Node: "node-7",
		OnOtherNodes: []string{`payroll/merger-0 on "node-8"`}, Comparison: witness.Comparison{
			Proven: []string{"payroll/merger-0"}}}
	b.Evidence.Inventory.Static.Missing = []string{"audit/watch-node-7"}
	b.Evidence.Inventory.Static.UIDs = map[string]string{"x": "/etc/kubernetes/manifests/watch.yaml"}
	return b
}

func unzipped(t *testing.T, file []byte) string {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestNoSecretIsRecorded(t *testing.T) {
	for name, text := range planted() {
		file, err := withPod(text).Encode(MaxFile)
		if err != nil {
			t.Fatal(err)
		}
		if content := unzipped(t, file); strings.Contains(content, "hunter2") ||
			!strings.Contains(content, "payroll") {
			t.Errorf("%s: %s", name, content)
		}
	}
}

func TestAnonymous(t *testing.T) {
	b := withPod("harmless")
	b.Anonymous = true
	file, err := b.Encode(MaxFile)
	if err != nil {
		t.Fatal(err)
	}
	content := unzipped(t, file)
	for _, name := range []string{"payroll", "merger", "node-7", "node-8", "audit", "watch"} {
		if strings.Contains(content, name) {
			t.Errorf("%s is named: %s", name, content)
		}
	}
	got, err := Decode(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	o, listed := got.Evidence.Objects[0], got.Evidence.Inventory.Cluster.Pods[uid]
	if o.Pod != listed.Pod || o.Pod.UID != uid || !strings.Contains(o.ID, o.Pod.Namespace+"_"+o.Pod.Name+"_"+uid) ||
		o.Holders[0].Pod != o.Pod || got.Evidence.Failures[0].Error !=
		fmt.Sprintf("of %s/%s on %s: harmless", o.Pod.Namespace, o.Pod.Name, got.Node) {
		t.Errorf("names are not replaced consistently: %+v", got.Evidence)
	}
	again, err := b.Encode(MaxFile)
	if err != nil || unzipped(t, again) == content {
		t.Errorf("two files have the same key: %v", err)
	}
}

func TestNamesThatAreNoUTF8StayDifferent(t *testing.T) {
	b := Bundle{Evidence: verdict.Evidence{Objects: []object.Object{
		{Kind: object.Cgroup, ID: "/a\xff"}, {Kind: object.Cgroup, ID: "/a\xfe"}}}}
	file, err := b.Encode(MaxFile)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(bytes.NewReader(file))
	if err != nil || got.Evidence.Objects[0].ID == got.Evidence.Objects[1].ID {
		t.Errorf("%+v, %v", got.Evidence.Objects, err)
	}
}

func TestLimitCutsWhatDecidesNothing(t *testing.T) {
	b := Bundle{}
	for i := range 5000 {
		b.Evidence.Objects = append(b.Evidence.Objects, object.Object{Kind: object.Mount,
			ID: fmt.Sprintf("/%x", i*7919), Foreign: "of the host"})
	}
	b.Evidence.Objects = append(b.Evidence.Objects, object.Object{Kind: object.Mount, ID: "/suspect",
		Pod: object.Pod{UID: uid}})
	file, err := b.Encode(10_000)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(bytes.NewReader(file))
	if err != nil || len(got.Evidence.Objects) != 1 || got.Evidence.Objects[0].ID != "/suspect" ||
		len(got.Cut) != 1 || !strings.HasPrefix(got.Cut[0], "5000 objects") {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := b.Encode(100); !errors.Is(err, errTooLarge) {
		t.Errorf("what cannot be cut any more: %v", err)
	}
}

func zipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	w.Close()
	return b.Bytes()
}

func TestHostileFiles(t *testing.T) {
	dir := t.TempDir()
	head := `{"format":"nodeagent-inspection","version":`
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"text":             {[]byte("hello"), "not a recorded inspection"},
		"another document": {zipped(t, `{"kind":"Pod"}`), "not a recorded inspection"},
		"newer":            {zipped(t, head+`2,"agent":"v9"}`), `version 2, recorded by nodeagent "v9"`},
		"unknown field":    {zipped(t, head+`1,"witness":{}}`), "unknown field"},
		"unknown evidence": {zipped(t, head+`1,"evidence":{"moon":1}}`), "unknown field"},
		"cut off":          {zipped(t, strings.Repeat("abc", 1000))[:30], "truncated"},
		"a bomb":           {zipped(t, strings.Repeat(" ", maxJSON+1)), "too large"},
		"a bomb of objects": {zipped(t, head+`1,"evidence":{"failures":[`+strings.Repeat("{},", maxJSONCount)+`{}]}}`),
			"JSON objects"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			if err := os.WriteFile(file, test.data, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Read(file); err == nil || !strings.Contains(err.Error(), test.want) ||
				!strings.Contains(err.Error(), file) {
				t.Errorf("%v, want %q and the file's name", err, test.want)
			}
		})
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(pipe); err == nil {
		t.Error("a pipe is read")
	}
}

func TestWriteNewOverwritesNothing(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := WriteNew(file, []byte("a")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "target"), link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{file, link} {
		if err := WriteNew(name, []byte("b")); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	stat, err := os.Stat(file)
	data, _ := os.ReadFile(file)
	if _, missing := os.Stat(filepath.Join(dir, "target")); err != nil || stat.Mode().Perm() != 0o600 ||
		string(data) != "a" || missing == nil {
		t.Errorf("%v %s, %v", stat.Mode(), data, err)
	}
}

func TestPrintable(t *testing.T) {
	got := Printable([]string{"a\x1b[31mb\n", "\xff", "\u202e", "käse"})
	if diff := cmp.Diff([]string{`a\u001b[31mb` + "\n", `\xff`, `\u202e`, "käse"}, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzDecode(f *testing.F) {
	file, err := withPod("x").Encode(MaxFile)
	if err != nil {
		f.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		f.Fatal(err)
	}
	seed, err := io.ReadAll(r)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := Decode(bytes.NewReader(zipped(t, string(data))))
		if err != nil {
			return
		}
		b.Evidence.Evaluate() // must not panic
	})
}
