// A browser that followed a link of another site sent no cookie: with a session the page goes on without the form.
"use strict";

fetch("/session")
  .then((answer) => answer.json())
  .then((found) => {
    if (found.user !== null) location.replace(document.body.dataset.next);
  })
  .catch(() => {}); // the form is there
