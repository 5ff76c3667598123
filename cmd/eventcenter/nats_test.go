package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/nodeagent/nodeagent/test/loopback"
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
		n.client[i], routes[i] = loopback.Free(t), loopback.Free(t)
	}
	for i := range n.all {
		text := fmt.Sprintf("server_name: n%d\nlisten: %q\nmax_payload: 16MB\n"+
			"jetstream { store_dir: %q, sync_interval: always }\ntls { cert_file: %q, key_file: %q }\n"+
			"cluster { name: c, listen: %q, routes: [nats://%s] }\n%s", i, n.client[i], filepath.Join(dir, fmt.Sprint("js", i)),
			n.ca, filepath.Join(dir, "key"), routes[i], strings.Join(routes[:], ", nats://"), accounts)
		n.conf[i] = put(t, dir, fmt.Sprintf("nats-%d.conf", i), text)
		n.start(i)
		t.Cleanup(func() { n.kill(i) })
	}
	n.url = "tls://" + strings.Join(n.client[:], ",tls://")
	return n
}

// accounts makes the keys of an operator, of the center's account, and of an unknown one.
func (n *natsServers) accounts(dir string) (conf string) {
	n.t.Helper()
	pair := func(kp nkeys.KeyPair, err error) (nkeys.KeyPair, string) {
		must(n.t, err)
		public, err := kp.PublicKey()
		must(n.t, err)
		return kp, public
	}
	signed := func(c jwt.Claims, by nkeys.KeyPair) string {
		text, err := c.Encode(by)
		must(n.t, err)
		return text
	}
	credentials := func(of nkeys.KeyPair, name string) string {
		user, userKey := pair(nkeys.CreateUser())
		seed, err := user.Seed()
		must(n.t, err)
		text, err := jwt.FormatUserConfig(signed(jwt.NewUserClaims(userKey), of), seed)
		must(n.t, err)
		return put(n.t, dir, name, string(text))
	}
	operator, operatorKey := pair(nkeys.CreateOperator())
	_, systemKey := pair(nkeys.CreateAccount())
	account, accountKey := pair(nkeys.CreateAccount())
	stranger, _ := pair(nkeys.CreateAccount())
	n.credentials, n.strangers = credentials(account, "center.creds"), credentials(stranger, "stranger.creds")
	claims, limits := jwt.NewOperatorClaims(operatorKey), jwt.NewAccountClaims(accountKey)
	claims.SystemAccount = systemKey
	limits.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	return fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: {\n%s: %s\n%s: %s\n}\n",
		signed(claims, operator), systemKey, systemKey, signed(jwt.NewAccountClaims(systemKey), operator), accountKey,
		signed(limits, operator))
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
	return put(n.t, n.t.TempDir(), "replicas.yaml", fmt.Sprintf("journal: jetstream\nname: replica-%d\n"+
		"nats: {url: %q, credentialsFile: %q, caFile: %q}\n", i, n.url, credentials, n.ca))
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
	stranger := launch(t, os.Args[0], t.TempDir(), loopback.Free(t), "--replicas", n.replicas(3, n.strangers))
	l := newLoad(8)
	end := l.begin(r.all[0])
	l.wait(t, 100)
	n.kill(0)
	l.wait(t, 100)
	n.start(0)
	l.wait(t, 50)
	for i := range n.all {
		n.kill(i)
	}
	r.all[1].writesNothing("no connection to NATS")
	for i := range n.all {
		n.start(i)
	}
	l.wait(t, 100)
	end()
	r.once(l)
	for i, p := range r.all {
		must(t, p.post(raised(fmt.Sprint("back-", i), 1)))
	}
	stranger.await(http.StatusServiceUnavailable, "Authorization Violation")
	good := read(t, n.credentials)
	must(t, os.WriteFile(n.strangers, good, 0o600)) // renew the credentials
	stranger.await(http.StatusOK)
	stranger.stop(syscall.SIGTERM)
}

// writesNothing demands that a center refuses events, answers reads, and is not ready for a reason.
func (p *process) writesNothing(why string) {
	p.t.Helper()
	if err := p.post(raised("away", 1)); err == nil || !strings.Contains(err.Error(), "503") {
		p.t.Errorf("an event is taken: %v", err)
	}
	for _, path := range []string{"/healthz", "/v1/faults", "/v1/events"} {
		must(p.t, p.has(path, http.StatusOK))
	}
	p.await(http.StatusServiceUnavailable, why)
}

// await waits for an answer of /readyz.
func (p *process) await(status int, texts ...string) {
	p.t.Helper()
	await(p.t, func() error { return p.has("/readyz", status, texts...) })
}

// A subject of a foreign NATS cluster is a subscription, over TLS and with an account: its stream has each event once,
// even events from while the center's server was away. If the credentials are refused, the status shows it.
func TestNATSSubject(t *testing.T) {
	need.Flag(t, *long, "-long")
	n := startNATS(t)
	conn, err := nats.Connect(n.url, nats.UserCredentials(n.credentials), nats.RootCAs(n.ca), nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true), nats.ReconnectWait(100*time.Millisecond))
	must(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	must(t, err)
	await(t, func() error {
		_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "FLEET", Subjects: []string{"fleet.>"}, Replicas: 3})
		return err
	})
	dir := t.TempDir()
	secret := put(t, dir, "secret", "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n")
	settings := "targets:\n"
	for i, credentials := range []string{n.credentials, n.strangers} {
		settings += fmt.Sprintf("  - {url: 'tls://%s/fleet', secretFile: %q, credentialsFile: %q, caFile: %q, "+
			"addresses: [127.0.0.0/8]}\n", n.client[i], secret, credentials, n.ca)
	}
	settings += fmt.Sprintf("subscriptions:\n  - {name: a, url: 'tls://%s/fleet.a'}\n"+
		"  - {name: stranger, url: 'tls://%s/fleet.b'}\n", n.client[0], n.client[1])
	p := start(t, t.TempDir(), "--subscriptions", put(t, dir, "subscriptions.yaml", settings))
	arrive := func(want uint64) {
		t.Helper()
		await(t, func() error {
			stream, err := js.Stream(t.Context(), "FLEET")
			if err != nil {
				return err
			}
			got := stream.CachedInfo().State.Msgs
			return unless(got == want, "%d messages, want %d\n%s", got, want, p.log)
		})
	}
	must(t, p.post(raised("node-1", 1), raised("node-2", 1)))
	arrive(2)
	n.kill(0)
	must(t, p.post(raised("node-1", 2)))
	n.start(0)
	arrive(3)
	await(t, func() error {
		return p.has("/v1/subscriptions", http.StatusOK, "Authorization Violation", `"delivered":3`)
	})
}
