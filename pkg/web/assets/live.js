// Replaces the content of the page by that of now every ten seconds, while it is seen and nobody writes in it. If it
// cannot, the page says so until it can again.
"use strict";
const every = 10000;
function busy(main) {
  return main.contains(document.activeElement) && document.activeElement !== document.body ||
    main.querySelector("details[open]") !== null || new URLSearchParams(location.search).has("before");
}
function say(text) {
  const status = document.getElementById("live");
  const whole = text && `${text} This page is as of ${document.querySelector("footer time").textContent}.`;
  if (status.textContent !== whole) {
    status.textContent = whole;
  }
}
async function refresh() {
  const main = document.querySelector("main[data-live]");
  if (main && !document.hidden) {
    try {
      const answer = await fetch(location.href, {redirect: "manual", signal: AbortSignal.timeout(every)});
      if (answer.type === "opaqueredirect") { // to the page for signing in
        say("You are not signed in any more: open the page again.");
      } else if (!answer.ok) {
        say(`The ${document.querySelector("header strong").textContent} answers with an error (${answer.status}).`);
      } else if (busy(main)) {
        say("");
      } else {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        main.replaceChildren(...page.querySelector("main").childNodes);
        document.querySelector("footer time").replaceWith(page.querySelector("footer time"));
        say("");
      }
    } catch (e) {
      say(`The ${document.querySelector("header strong").textContent} cannot be reached.`);
    }
  }
  setTimeout(refresh, main && busy(main) ? 6 * every : every);
}
setTimeout(refresh, every);
