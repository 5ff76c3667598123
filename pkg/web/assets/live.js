// Replaces the content of the page by that of now every ten seconds, while it is seen and nobody writes in it.
"use strict";
const every = 10000;
function busy(main) {
  return document.hidden || main.contains(document.activeElement) && document.activeElement !== document.body ||
    main.querySelector("details[open]") !== null || new URLSearchParams(location.search).has("before");
}
async function refresh() {
  const main = document.querySelector("main[data-live]");
  if (main && !busy(main)) {
    try {
      const answer = await fetch(location.href, {redirect: "error"});
      if (answer.ok && !busy(main)) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        main.replaceChildren(...page.querySelector("main").childNodes);
        document.querySelector("footer time").replaceWith(page.querySelector("footer time"));
      }
    } catch (e) {
      // the program is away: the time at the end of the page says how old it is
    }
  }
  setTimeout(refresh, every);
}
setTimeout(refresh, every);
