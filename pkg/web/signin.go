package web

import (
	"errors"
	"net/http"

	"github.com/nodeagent/nodeagent/pkg/web/share"
)

// signIn is the data of the sign-in page.
type signIn struct {
	Next     string
	Provider string
}

// askToSignIn shows the ways to sign in.
func (s *Site) askToSignIn(w http.ResponseWriter, r *http.Request, status int, next, notice string) {
	data := signIn{Next: next}
	if s.Provider != nil {
		data.Provider = s.Provider.Name()
	}
	s.Show(w, r, status, "login", View{Title: "Sign in", Data: data, Notice: notice})
}

func (s *Site) loginForm(w http.ResponseWriter, r *http.Request) {
	s.askToSignIn(w, r, http.StatusOK, Next(r.URL.Query().Get("next")), "")
}

func (s *Site) login(w http.ResponseWriter, r *http.Request) {
	to := Next(r.PostFormValue("next"))
	cookie, err := s.Sessions.SignIn(r.Context(), share.Of(r), r.PostFormValue("code"))
	if errors.Is(err, errCode) {
		s.askToSignIn(w, r, http.StatusForbidden, to, "This code is not known, was used, or has ended. Make another one.")
		return
	}
	if errors.Is(err, errManyTries) { // the code was not looked at: it still is good
		w.Header().Set("Retry-After", "2")
		s.askToSignIn(w, r, http.StatusTooManyRequests, to,
			"Too many codes came from your network. Try this one again in some seconds.")
		return
	}
	if err != nil {
		s.notSignedIn(w, r, to, err)
		return
	}
	http.SetCookie(w, cookie)
	http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // a page of this site: see Next
}

// start redirects a person to the identity provider.
func (s *Site) start(w http.ResponseWriter, r *http.Request) {
	to := Next(r.URL.Query().Get("next"))
	if err := s.Provider.Start(w, r, to); err != nil {
		s.noProvider(w, r, to, err)
	}
}

// finish signs in a person returning from the provider. It uses Refresh, not a redirection: the browser would still
// count a redirection as the provider's navigation, and send no SameSite=Strict cookie.
func (s *Site) finish(w http.ResponseWriter, r *http.Request) {
	name, operator, to, err := s.Provider.Finish(w, r)
	to = Next(to)
	if err != nil {
		s.noProvider(w, r, to, err)
		return
	}
	cookie, err := s.Sessions.open(r.Context(), Person{Name: name, Operator: operator})
	if err != nil {
		s.notSignedIn(w, r, to, err)
		return
	}
	http.SetCookie(w, cookie)
	w.Header().Set("Refresh", "0; url="+to)
	s.Show(w, r, http.StatusOK, "welcome", View{Title: "Signed in", Data: to})
}

// notSignedIn shows why a session cannot start now.
func (s *Site) notSignedIn(w http.ResponseWriter, r *http.Request, to string, err error) {
	notice := "Too many people are signed in."
	if !errors.Is(err, errManySessions) {
		if !hasLeft(r) {
			s.Log.Error("store a session failed", "err", err)
		}
		notice = "You cannot sign in now; the log says why."
	}
	s.askToSignIn(w, r, http.StatusServiceUnavailable, to, notice)
}

// noProvider shows why signing in at the provider failed.
func (s *Site) noProvider(w http.ResponseWriter, r *http.Request, to string, err error) {
	if refusal, ok := errors.AsType[interface {
		error
		Refused() string
	}](err); ok {
		s.askToSignIn(w, r, http.StatusForbidden, to, refusal.Refused())
		return
	}
	if !hasLeft(r) {
		s.Log.Error("sign in at the identity provider failed", "err", err)
	}
	s.askToSignIn(w, r, http.StatusBadGateway, to, "The identity provider cannot be asked now; the log says why.")
}

func (s *Site) logout(w http.ResponseWriter, r *http.Request, _ Session) {
	cookie, err := s.Sessions.signOut(r)
	if err != nil {
		if !hasLeft(r) {
			s.Log.Error("end a session failed", "err", err)
		}
		s.Message(w, r, http.StatusServiceUnavailable, "The session cannot be ended now: try again.")
		return
	}
	http.SetCookie(w, cookie)
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}
