package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/nodeagent/nodeagent/test/need"
)

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
	if !eventually(patience, func() bool {
		_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "FLEET", Subjects: []string{"fleet.>"}, Replicas: 3})
		return err == nil
	}) {
		t.Fatal(err)
	}
	dir := t.TempDir()
	secret, file := filepath.Join(dir, "secret"), filepath.Join(dir, "subscriptions.yaml")
	n.write(secret, "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n")
	settings := "targets:\n"
	for i, credentials := range []string{n.credentials, n.strangers} {
		settings += fmt.Sprintf("  - {url: 'tls://%s/fleet', secretFile: %q, credentialsFile: %q, caFile: %q, "+
			"addresses: [127.0.0.0/8]}\n", n.client[i], secret, credentials, n.ca)
	}
	n.write(file, settings+fmt.Sprintf("subscriptions:\n  - {name: a, url: 'tls://%s/fleet.a'}\n"+
		"  - {name: stranger, url: 'tls://%s/fleet.b'}\n", n.client[0], n.client[1]))
	p := start(t, t.TempDir(), "--subscriptions", file)
	messages := func() uint64 {
		stream, err := js.Stream(t.Context(), "FLEET")
		if err != nil {
			return 0
		}
		return stream.CachedInfo().State.Msgs
	}
	must(t, p.post(raised("node-1", 1), raised("node-2", 1)))
	if !eventually(patience, func() bool { return messages() == 2 }) {
		t.Fatalf("%d messages, want 2\n%s", messages(), p.log)
	}
	n.kill(0)
	must(t, p.post(raised("node-1", 2)))
	n.start(0)
	if !eventually(patience, func() bool { return messages() == 3 }) {
		t.Fatalf("%d messages, want 3\n%s", messages(), p.log)
	}
	if !eventually(patience, func() bool {
		_, body, err := p.do(http.MethodGet, "/v1/subscriptions", "", nil)
		return err == nil && strings.Contains(string(body), "Authorization Violation") &&
			strings.Contains(string(body), `"delivered":3`)
	}) {
		_, body, _ := p.do(http.MethodGet, "/v1/subscriptions", "", nil)
		t.Errorf("subscriptions: %s", body)
	}
}
