// The service's API at the origin that this page came from. Addresses are relative: they work behind a path prefix too.

// In memory alone: a reload forgets it, and no storage that outlives the page ever holds it.
let token = "";

export function setToken(text) {
  token = text.trim();
}

// An answer other than 2xx. problem: the service's problem+json, or as much of one as something in between left over.
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? `the service answered with status ${status}`);
    this.status = status;
    this.problem = problem;
  }
}

// Of GET and of POST with a JSON body; signal: of an AbortController. Throws Refused, and an Error in words where
// nothing answered.
export async function ask(path, { body, signal } = {}) {
  const headers = { Accept: "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    headers["X-Caller"] = "page";
  }
  let response;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Error("The service cannot be reached. Is it still running?");
  }
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, content);
  return content;
}

// Whoever moves a slider tries things out: the record says of such answers that nobody acts on them.
export const RECOMMEND = "v1/recommend?mode=shadow";
export const BATCH = "v1/recommend:batch?mode=shadow";
