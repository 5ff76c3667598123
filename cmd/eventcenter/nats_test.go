package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/nodeagent/nodeagent/test/need"
)

// natsServers are three real NATS servers, as others run them: with TLS and accounts, one of which is the center's.
type natsServers struct {
	t      *testing.T
	conf   [3]string
	client [3]string // addresses
	all    [3]*server.Server

	url, ca, credentials, strangers string
}

func startNATS(t *testing.T) *natsServers {
	t.Helper()
	dir := t.TempDir()
	n := &natsServers{t: t, ca: filepath.Join(dir, "cert")}
	writeCertificate(t, dir, 1)
	accounts := n.accounts(dir)
	var routes [3]string
	for i := range n.all {
		n.client[i], routes[i] = freeAddress(t), freeAddress(t)
	}
	for i := range n.all {
		n.conf[i] = filepath.Join(dir, fmt.Sprintf("nats-%d.conf", i))
		text := fmt.Sprintf("server_name: n%d\nlisten: %q\nmax_payload: 16MB\n"+
			"jetstream { store_dir: %q, sync_interval: always }\ntls { cert_file: %q, key_file: %q }\n"+
			"cluster { name: c, listen: %q, routes: [nats://%s] }\n%s", i, n.client[i], filepath.Join(dir, fmt.Sprint("js", i)),
			n.ca, filepath.Join(dir, "key"), routes[i], strings.Join(routes[:], ", nats://"), accounts)
		n.write(n.conf[i], text)
		n.start(i)
		t.Cleanup(func() { n.kill(i) })
	}
	n.url = "tls://" + strings.Join(n.client[:], ",tls://")
	return n
}

func (n *natsServers) write(name, text string) {
	n.t.Helper()
	must(n.t, os.WriteFile(name, []byte(text), 0o600))
}

// accounts makes the keys of an operator, of the center's account, and of an unknown one.
func (n *natsServers) accounts(dir string) (conf string) {
	n.t.Helper()
	var problems []error
	pair := func(kp nkeys.KeyPair, err error) (nkeys.KeyPair, string) {
		problems = append(problems, err)
		public, err := kp.PublicKey()
		problems = append(problems, err)
		return kp, public
	}
	signed := func(c interface {
		Encode(kp nkeys.KeyPair) (string, error)
	}, by nkeys.KeyPair) string {
		text, err := c.Encode(by)
		problems = append(problems, err)
		return text
	}
	operator, operatorKey := pair(nkeys.CreateOperator())
	_, systemKey := pair(nkeys.CreateAccount())
	account, accountKey := pair(nkeys.CreateAccount())
	stranger, _ := pair(nkeys.CreateAccount())
	claims := jwt.NewOperatorClaims(operatorKey)
	claims.SystemAccount = systemKey
	limits := jwt.NewAccountClaims(accountKey)
	limits.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	conf = fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: {\n%s: %s\n%s: %s\n}\n",
		signed(claims, operator), systemKey, systemKey, signed(jwt.NewAccountClaims(systemKey), operator), accountKey,
		signed(limits, operator))
	credentials := func(of nkeys.KeyPair, name string) string {
		user, userKey := pair(nkeys.CreateUser())
		seed, err := user.Seed()
		text, formatErr := jwt.FormatUserConfig(signed(jwt.NewUserClaims(userKey), of), seed)
		problems = append(problems, err, formatErr)
		n.write(filepath.Join(dir, name), string(text))
		return filepath.Join(dir, name)
	}
	n.credentials, n.strangers = credentials(account, "center.creds"), credentials(stranger, "stranger.creds")
	must(n.t, errors.Join(problems...))
	return conf
}

func (n *natsServers) start(i int) {
	n.t.Helper()
	o, err := server.ProcessConfigFile(n.conf[i])
	must(n.t, err)
	o.NoSigs, o.NoLog = true, true
	n.all[i], err = server.NewServer(o)
	must(n.t, err)
	n.all[i].Start()
}

func (n *natsServers) kill(i int) {
	if n.all[i] != nil {
		n.all[i].Shutdown()
		n.all[i].WaitForShutdown()
		n.all[i] = nil
	}
}

// replicas writes the settings file of a replica.
func (n *natsServers) replicas(i int, credentials string) string {
	name := filepath.Join(n.t.TempDir(), "replicas.yaml")
	n.write(name, fmt.Sprintf("journal: jetstream\nname: replica-%d\n"+
		"nats: {url: %q, credentialsFile: %q, caFile: %q}\n", i, n.url, credentials, n.ca))
	return name
}

// Three centers keep their journal in foreign NATS servers, over TLS and with credentials. One server may be lost;
// while all are away, writes fail and local reads work; when they return, every acknowledged event is there once, on
// each replica. A center without an account reports that, and continues once it has one.
func TestOutsideNATS(t *testing.T) {
	need.Flag(t, *long, "-long")
	n := startNATS(t)
	r := &threeReplicas{t: t}
	r.each(func(i int) {
		r.dirs[i], r.files[i] = t.TempDir(), n.replicas(i, n.credentials)
		r.start(i)
	})
	stranger := startUnready(t, t.TempDir(), "--replicas", n.replicas(3, n.strangers))
	l := newLoad(8)
	var running sync.WaitGroup
	running.Go(func() { l.send(r.all[0]) })
	l.wait(t, 100)
	n.kill(0)
	l.wait(t, 100)
	n.start(0)
	l.wait(t, 50)
	for i := range n.all {
		n.kill(i)
	}
	away := raised("away", 1)
	if err := r.all[1].post(away); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("without NATS: %v", err)
	}
	for path, want := range map[string]int{"/healthz": http.StatusOK, "/v1/faults": http.StatusOK,
		"/v1/events": http.StatusOK} {
		if status, body, err := r.all[1].do(http.MethodGet, path, "", nil); err != nil || status != want {
			t.Errorf("%s: %d %.300s %v", path, status, body, err)
		}
	}
	r.notReady(r.all[1], "no connection to NATS")
	for i := range n.all {
		n.start(i)
	}
	l.wait(t, 100)
	l.over.Store(true)
	running.Wait()
	r.once(l)
	for i, p := range r.all {
		if err := p.post(raised(fmt.Sprint("back-", i), 1)); err != nil {
			t.Errorf("replica %d: %v", i, err)
		}
	}
	r.notReady(stranger, "Authorization Violation")
	good, err := os.ReadFile(n.credentials)
	must(t, err)
	n.write(n.strangers, string(good)) // renew the credentials
	stranger.await(http.StatusOK)
	stranger.stop(syscall.SIGTERM)
}

// notReady waits until a center reports that it is not ready, with a reason.
func (r *threeReplicas) notReady(p *process, why string) {
	r.t.Helper()
	var status int
	var body []byte
	if !eventually(patience, func() (is bool) {
		var err error
		status, body, err = p.do(http.MethodGet, "/readyz", "", nil)
		return err == nil && status == http.StatusServiceUnavailable && strings.Contains(string(body), why)
	}) {
		r.t.Errorf("ready, or without the reason %q: %d %s\n%s", why, status, body, p.log)
	}
	r.t.Logf("not ready: %s", body)
}

// await waits for a status of /readyz.
func (p *process) await(want int) {
	p.t.Helper()
	if !eventually(patience, func() bool {
		status, _, err := p.do(http.MethodGet, "/readyz", "", nil)
		return err == nil && status == want
	}) {
		p.t.Errorf("not %d\n%s", want, p.log)
	}
}

// startUnready starts a center that will not become ready, on an address of its own.
func startUnready(t *testing.T, dir string, flags ...string) *process {
	t.Helper()
	return launch(t, os.Args[0], dir, freeAddress(t), flags...)
}
