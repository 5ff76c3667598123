// Package oidc signs people in at an identity provider (OpenID Connect Core 1.0, authorization code flow with PKCE),
// and accepts its ID tokens from readers. Listed groups and people may read: an account alone is not enough.
package oidc

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/web/settings"
)

// Settings configure an identity provider.
type Settings struct {
	// Issuer is the provider's URL, as in its tokens; https, or http on loopback.
	Issuer string `yaml:"issuer"`
	// ClientID is the program's name there, and the audience of ID tokens for the program.
	ClientID string `yaml:"clientID"`
	// ClientSecretFile is the absolute path of the client's secret; read for each sign-in. Empty: a public client.
	ClientSecretFile string `yaml:"clientSecretFile"`
	// Address is where people open the pages, https://eventcenter.example.com. The provider must know ADDRESS/login/callback.
	Address string `yaml:"address"`
	// CAFile is the absolute path of the CAs for the provider's certificate. Empty: the system's.
	CAFile string `yaml:"caFile"`
	// NameClaim is the claim with a person's name. Empty: email. An address marked as unverified is not accepted.
	NameClaim string `yaml:"nameClaim"`
	// GroupsClaim is the claim with a person's groups. Empty: groups.
	GroupsClaim string `yaml:"groupsClaim"`
	// Scopes are requested in addition to openid, profile and email.
	Scopes []string `yaml:"scopes"`
	// Groups are the groups whose members may read.
	Groups []string `yaml:"groups"`
	// People may read too, listed by name.
	People []string `yaml:"people"`
	// OperatorGroups are groups whose members may also mute faults, take them over, comment on them, and declare
	// maintenance. Everybody else, except OperatorPeople, only reads.
	OperatorGroups []string `yaml:"operatorGroups"`
	// OperatorPeople may do that too, listed by name.
	OperatorPeople []string `yaml:"operatorPeople"`
}

const (
	callback = "/login/callback"
)

// Read reads settings strictly: an unknown key is an error.
func Read(r io.Reader) (s Settings, err error) {
	if err := settings.Read(r, &s); err != nil {
		return s, err
	}
	if s.NameClaim == "" {
		s.NameClaim = "email"
	}
	if s.GroupsClaim == "" {
		s.GroupsClaim = "groups"
	}
	return s, s.problem()
}

// problem returns the first error in the settings.
func (s Settings) problem() error {
	for key, text := range map[string]string{"issuer": s.Issuer, "address": s.Address} {
		if err := safe(text); err != nil {
			return fmt.Errorf("%s %q: %w", key, text, err)
		}
	}
	if u, err := url.Parse(s.Address); err != nil || strings.Trim(u.Path, "/") != "" {
		return fmt.Errorf("address %q: the pages begin at /", s.Address)
	}
	for key, name := range map[string]string{"clientSecretFile": s.ClientSecretFile, "caFile": s.CAFile} {
		if name != "" && !filepath.IsAbs(name) {
			return fmt.Errorf("%s %q: no absolute path", key, name)
		}
	}
	switch {
	case s.ClientID == "":
		return errors.New("clientID: the program's name at the provider is needed")
	case len(s.Groups)+len(s.People)+len(s.OperatorGroups)+len(s.OperatorPeople) == 0:
		return errors.New("groups, people: nobody may read")
	case slices.Contains(slices.Concat(s.Groups, s.People, s.OperatorGroups, s.OperatorPeople), ""):
		return errors.New("groups, people: an empty name")
	}
	return nil
}

// safe refuses a URL whose traffic others could read.
func safe(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("no URL")
	case u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return errors.New("want https://HOST")
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && (u.Hostname() == "localhost" || u.Hostname() == "127.0.0.1" || u.Hostname() == "::1"):
		return nil
	}
	return errors.New("want https; http is for loopback alone")
}
